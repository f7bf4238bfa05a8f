"""README and docs cannot drift from the code: examples run, commands parse, links and contents are whole."""

import doctest
import importlib.util
import re
import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

import pytest
import torch
import typer

import graphjoule
from graphjoule.cli import app
from graphjoule.training.settings import setting_names

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [path.relative_to(ROOT).as_posix() for path in (ROOT / "README.md", *sorted(DOCS.rglob("*.md")))]
RECORD_PAGES = [f"reproduction/{name}.md" for name in ("RESULTS", "CONSTRAINT", "TUNED", "results/README")]
LINKED = [*PAGES, "CHANGELOG.md", *RECORD_PAGES]
GROUP = typer.main.get_command(app)
COMMANDS = {name: GROUP.get_command(typer.Context(GROUP), name) for name in GROUP.list_commands(typer.Context(GROUP))}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
FENCE = re.compile(
    r"^(?: *<!-- not run: (?P<reason>[^\n]*?) -->\n)?"
    r"(?P<indent> *)```(?P<language>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```$",
    flags=re.DOTALL | re.MULTILINE,
)
ENDS = {"&&", "||", "|", ";", "&", ">", "2>", "<"}  # of one command in a line of the shell


@dataclass(frozen=True)
class Block:
    """What stands between two fences, and in which language; `reason` says why an example is not run."""

    language: str
    text: str
    reason: str | None

    @property
    def is_run(self):
        return self.language in {"python", "pycon"} and self.reason is None


def read(page):
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(text):
    return [Block(found["language"].strip(), dedent(found["text"]), found["reason"]) for found in FENCE.finditer(text)]


def prose(text):
    """A page without its blocks."""
    return FENCE.sub("", text)


WITH_EXAMPLES = [page for page in PAGES if any(block.is_run for block in blocks(read(page)))]


# Examples.


def run_examples(page, text):
    """Run all examples of a page in order, in one namespace; a file that the page shows is there for them."""
    for name, content in re.findall(r"`([\w-]+\.csv)`:\n\n```csv\n(.*?)```", text, flags=re.DOTALL):
        Path(name).write_text(content)
    names: dict[str, object] = {"__name__": "__main__"}
    for number, block in enumerate((block for block in blocks(text) if block.is_run), start=1):
        where = f"{page}, example {number}"
        if block.language == "python":
            exec(compile(block.text, where, "exec"), names)
        else:
            examples = doctest.DocTestParser().get_doctest(block.text, names, where, page, 0)
            assert examples.examples, where
            said: list[str] = []
            doctest.DocTestRunner().run(examples, out=said.append, clear_globs=False)
            names |= examples.globs
            assert not said, "".join(said)


@pytest.mark.parametrize("page", WITH_EXAMPLES)
def test_the_examples_run_in_their_order(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    run_examples(page, read(page))
    if any(block.language == "python" for block in blocks(read(page)) if block.is_run):
        assert capsys.readouterr().out


def test_the_pages_that_begin_have_examples():
    assert {"README.md", "docs/index.md", "docs/quickstart.md", "docs/ideas.md", "docs/own-model.md"} <= set(
        WITH_EXAMPLES
    )
    assert len(WITH_EXAMPLES) >= 10


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("```python\nx = 1\n```\n\n```python\nassert x == 2\n```\n", AssertionError),
        ("```python\nfrom graphjoule import Trase\n```\n", ImportError),
        ("```pycon\n>>> 1 + 1\n3\n\n```\n", AssertionError),
        ("```pycon\n```\n", AssertionError),
        ("- a list\n\n  ```python\n  unknown\n  ```\n", NameError),
    ],
)
def test_an_example_that_is_wrong_is_found(text, error):
    with pytest.raises(error):
        run_examples("a page", text)


def test_an_example_is_left_out_for_a_reason_only():
    (block,) = blocks("<!-- not run: needs a GPU -->\n```python\nunknown\n```\n")
    assert (block.reason, block.is_run) == ("needs a GPU", False)
    assert blocks("```python\nx\n```\n")[0].is_run
    for page in PAGES:
        assert all(block.reason is None or len(block.reason) > 5 for block in blocks(read(page)))


# Commands.


def shell_lines(text):
    """Lines that a page shows for a terminal: of blocks called console, and of blocks without a language."""
    for block in blocks(text):
        if block.language in {"console", "bash", "sh"} or not block.language:
            for line in block.text.replace("\\\n", " ").splitlines():
                yield line.removeprefix("$ ").strip()


def arguments_of(line):
    """What follows ``graphjoule`` in a line, or None if it calls something else."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # output with a lone quote
        return None
    at = next((i for i, word in enumerate(words) if Path(word).name == "graphjoule" or "=" not in word), None)
    if at is None or Path(words[at]).name != "graphjoule":
        if "-m" not in words or words[words.index("-m") + 1 :][:1] != ["graphjoule"]:
            return None
        at = words.index("-m") + 1
    rest = words[at + 1 :]
    end = next((i for i, word in enumerate(rest) if word in ENDS), len(rest))
    return rest[:end]


def parse(arguments):
    """Check a command as the command line would, without running it."""
    name, *rest = arguments
    if name == "--version":
        return
    COMMANDS[name].make_context(name, rest)


def options_of(command):
    return {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_parse(page):
    for line in shell_lines(read(page)):
        if arguments := arguments_of(line):
            try:
                parse(arguments)
            except Exception as error:
                raise AssertionError(f"{page}: {line}: {error!r}") from error


@pytest.mark.parametrize("page", PAGES)
def test_no_page_trains_twice_into_one_folder(page):
    """The second would be refused, and what follows would be about the first."""
    asked = [arguments for line in shell_lines(read(page)) if (arguments := arguments_of(line))]
    trained = [each for each in asked if each[0] in {"train", "auto", "tune"} and "--resume" not in each]
    folders = [each[each.index("--out") + 1] for each in trained if "--out" in each]
    assert len(folders) == len(set(folders)), folders


@pytest.mark.parametrize("page", LINKED)
def test_commands_in_a_sentence_name_what_there_is(page):
    for code in re.findall(r"`(graphjoule [a-z][^`]*)`", prose(read(page)).replace("\n", " ")):
        name, *rest = code.split()[1:]
        if name in COMMANDS:
            asked = set(re.findall(r"(?<!\S)\[?(--[a-z][a-z-]*)", " ".join(rest)))
            assert asked <= options_of(COMMANDS[name]) | {"--help"}, code
        else:
            assert re.fullmatch(r"[a-z]+(/[a-z]+)+", name), code  # several at once, such as train/predict
            assert set(name.split("/")) <= set(COMMANDS), code


@pytest.mark.parametrize("name", COMMANDS)
def test_the_examples_in_the_help_of_a_command_parse(name):
    for example in re.findall(r"`(graphjoule [^`]*)`", COMMANDS[name].help):
        parse(arguments_of(example))


@pytest.mark.parametrize("line", ["graphjoule trian", "graphjoule train --layer 3", "graphjoule train --layers many"])
def test_a_command_that_is_wrong_is_found(line):
    with pytest.raises(Exception, match=r"trian|No such option|integer"):
        parse(arguments_of(line))


def test_a_command_is_found_wherever_it_stands_in_a_line():
    assert arguments_of("A=1 graphjoule train --layers 2  # two") == ["train", "--layers", "2"]
    assert arguments_of("torchrun --nproc-per-node 2 -m graphjoule train --json > out") == ["train", "--json"]
    assert arguments_of(".venv/bin/graphjoule demo && ls") == ["demo"]
    assert arguments_of("2,708 nodes, c_min 0.15") is None
    assert arguments_of("graphjoule: people.csv, line 2") is None


@pytest.mark.parametrize("page", LINKED)
def test_scripts_targets_and_extras_are_there(page):
    text = read(page)
    targets = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    for target in [*re.findall(r"^make (\w+)", text, flags=re.MULTILINE), *re.findall(r"`make (\w+)", text)]:
        assert target in targets
    for script in re.findall(r"\bpython ([\w/-]+\.py)\b", text):
        assert (ROOT / script).is_file(), script
    for module in re.findall(r"\bpython -m ((?:graphjoule|reproduction)\.[\w.]*\w)", text):
        assert importlib.util.find_spec(module), module
    for extras in re.findall(r"graphjoule\[([\w,]+)\]", text):
        assert set(extras.split(",")) <= set(PROJECT["project"]["optional-dependencies"]), extras


# Links, contents, reference.


@pytest.mark.parametrize("page", LINKED)
def test_files_that_a_page_names_are_there(page):
    for target in re.findall(r"\]\(([^)#\s]+)\)", prose(read(page))):
        if not target.startswith("http"):
            assert ((ROOT / page).parent / target).exists(), target


@pytest.mark.parametrize("page", LINKED)
def test_what_a_picture_shows_is_one_sentence(page):
    for alt in re.findall(r"!\[(.*?)\]\(", read(page), flags=re.DOTALL):
        assert re.fullmatch(r"[A-Z].*[^.]\.", alt), alt
        assert ". " not in alt, alt


@pytest.mark.parametrize("page", LINKED)
def test_no_line_begins_with_a_number_from_a_record(page):
    """Markdown takes a line that begins with a comment for HTML: the paragraph ends, and marks show as they are."""
    lines = read(page).splitlines()
    assert [line for line in lines if re.match(r"\s*(-->|<!--(= |/))", line)] == []


def test_every_page_is_in_the_contents_once():
    listed = []
    for index in (DOCS / "index.md", DOCS / "api" / "index.md"):
        for contents in re.findall(r"```\{toctree\}\n(.*?)```", index.read_text(), flags=re.DOTALL):
            names = [line for line in contents.splitlines() if line and not line.startswith(":")]
            listed += [(index.parent / f"{name}.md").relative_to(ROOT).as_posix() for name in names]
    pages = [page for page in PAGES if page.startswith("docs/") and page != "docs/index.md"]
    assert sorted(listed) == sorted(pages), "put a new page into a list of contents in docs/index.md"


def test_every_room_is_in_the_notes_for_contributors():
    table = (DOCS / "contributing.md").read_text().split("## The way data flows")[1].split("\n## ")[0]
    rooms = [path.parent.name for path in (ROOT / "src/graphjoule").glob("*/__init__.py")]
    assert [room for room in rooms if f"`{room}/`" not in table] == []


def test_every_public_name_is_in_the_reference_once():
    text = "\n".join(path.read_text() for path in sorted((DOCS / "api").glob("*.md")))
    listed = re.findall(r"^\.\. (?:auto\w+|py:data):: (\w+)", text, flags=re.MULTILINE)
    public = [name for name in listed if name != "graphjoule"]  # names behind the door are written in full
    assert sorted(public) == sorted(graphjoule.__all__), "put a new public name onto a page in docs/api"


def test_every_setting_is_on_the_page_of_settings():
    page = read("docs/settings.md")
    names = {name for model in graphjoule.MODELS for name in setting_names(model)}
    names = {re.sub(r"(weight_decay)\..*", r"\1", name) for name in names}
    assert sorted(name for name in names if f"| `{name}` |" not in page) == []
    listed = set(re.findall(r"^\| `((?:model|train|data|terms)\.[\w.]+)` \|", page, flags=re.MULTILINE))
    assert sorted(listed - names) == []
