import pytest

from graphjoule.errors import GraphjouleError
from graphjoule.training.recipe import Recipe, load_recipe


def recipe(**overrides) -> Recipe:
    return load_recipe("egnn", "cora", 2, overrides)


def test_without_clusters_a_recipe_is_what_it_was():
    plain = recipe()
    assert plain.clusters is None
    assert not [name for name in plain.settings() if name.startswith("clusters")]
    assert recipe(clusters=None).fingerprint() == plain.fingerprint()


def test_clusters_are_settings_with_sources_that_survive_a_file():
    made = recipe(clusters=50, **{"clusters.per_step": 5})
    ours = {name: value for name, value in made.settings().items() if name.startswith("clusters")}
    assert ours == {
        "clusters": 50,
        "clusters.per_step": 5,
        "clusters.accumulate": 1,
        "clusters.method": "metis",
        "clusters.validate_every": 1,
    }
    assert made.sources["clusters"] == made.sources["clusters.per_step"] == "override"
    assert made.sources["clusters.method"] == "default"
    assert Recipe.from_json(made.to_json()) == made
    assert made.fingerprint() != recipe(clusters=50).fingerprint() != recipe().fingerprint()
    assert recipe(clusters=50).differences(made) == ["clusters.per_step: 1 -> 5"]


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"clusters": 0}, r"^clusters.parts = 0 cannot be used: it should be greater than or equal to 1"),
        ({"clusters": 2.5}, r"^clusters.parts = 2.5 cannot be used: it should be a valid integer"),
        ({"clusters": 3, "clusters.per_step": 4}, "clusters.per_step is 4, but there are 3 clusters"),
        ({"clusters": 3, "clusters.method": "louvain"}, "'louvain' cannot be used: it should be 'metis' or 'blocks'"),
        ({"clusters.per_step": 4}, "clusters.per_step is set, but there are no clusters: .* --clusters"),
        ({"clusters": 3, "cluster.method": "x"}, 'did you mean "clusters.method"'),
        ({"clusters": 3, "constraint": "penalty"}, "constraint and clusters cannot be had together"),
    ],
)
def test_settings_that_cannot_be_are_refused_in_a_sentence(overrides, words):
    with pytest.raises(GraphjouleError, match=words):
        recipe(**overrides)
