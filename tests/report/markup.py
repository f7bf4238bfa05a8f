"""A strict reading of a page: what opens must close, in order."""

from html.parser import HTMLParser

_VOID = {"meta", "input", "br", "link"}


class Page(HTMLParser):
    """The elements of a page, with their attributes and their text."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.elements, self._open = [], []
        self.feed(text)
        self.close()
        assert self._open == [], f"never closed: {self._open}"

    def handle_starttag(self, tag, attrs):
        element = {"tag": tag, "text": "", "inside": [one["tag"] for one in self._open], **dict(attrs)}
        assert len(attrs) == len(dict(attrs)), f"an attribute twice: {attrs}"
        self.elements.append(element)
        if tag not in _VOID:
            self._open.append(element)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self._open.pop()

    def handle_endtag(self, tag):
        assert self._open[-1]["tag"] == tag, f"{tag} closes {self._open[-1]}"
        self._open.pop()

    def handle_data(self, data):
        for element in self._open:
            element["text"] += data

    def all(self, tag, **attributes):
        """The elements of a tag that have these attributes."""
        return [e for e in self.elements if e["tag"] == tag and attributes.items() <= e.items()]

    def rows(self, heading):
        """The rows of every table that has this heading, as texts; the head is the first row."""
        rows = []
        for element in self.elements:
            if element["tag"] == "table":
                rows.append([])
            elif element["tag"] == "tr":
                rows[-1].append([])
            elif element["tag"] in ("td", "th"):
                rows[-1][-1].append(element["text"])
        return [table for table in rows if heading in table[0]]
