"""Finds the words that a template searches for in messages.

SmolLM3's and Nemotron's templates, for example, end a prompt differently if a message contains `/no_think`. If a text
contains none of a template's words, another such text can replace it without changing the rest of the prompt.
"""

from jinja2 import nodes

# Methods of texts that search for their first argument. Methods that only strip characters are not listed, because they
# search for no words.
SEARCHES = frozenset(
    ["startswith", "endswith", "find", "rfind", "index", "rindex", "count", "split", "rsplit", "partition", "rpartition"]
    + ["replace", "removeprefix", "removesuffix"]
)

# The empty text, which every text contains, represents a search term that is known only when the template runs.
ANY = ""

NO_WORDS = {"inside": [], "whole": []}


def find_words(syntax_tree):
    """Returns the words that the template searches for inside texts, and those that it compares with complete texts."""
    search = WordSearch(syntax_tree)
    for comparison in syntax_tree.find_all(nodes.Compare):
        search.read_comparison(comparison)
    for call in syntax_tree.find_all((nodes.Call, nodes.Filter)):
        search.read_call(call)
    return {"inside": sorted(search.inside), "whole": sorted(search.whole - {""})}


class WordSearch:
    """A collector of words from the comparisons, calls and filters of a template."""

    def __init__(self, syntax_tree):
        self.inside = set()
        self.whole = set()
        self.assigned = {}
        for assignment in syntax_tree.find_all(nodes.Assign):
            if isinstance(assignment.target, nodes.Name):
                self.assigned.setdefault(assignment.target.name, []).append(assignment.node)
        for loop in syntax_tree.find_all(nodes.For):
            if isinstance(loop.target, nodes.Name) and isinstance(loop.iter, (nodes.List, nodes.Tuple)):
                self.assigned.setdefault(loop.target.name, []).extend(loop.iter.items)
        # An expression whose fields the template reads is not a text.
        reads = (nodes.Getattr, nodes.Getitem)
        self.mappings = {repr(read.node) for read in syntax_tree.find_all(reads) if reads_field(read)}

    def read_comparison(self, comparison):
        left = comparison.expr
        for operand in comparison.ops:
            right = operand.expr
            if operand.op in ("in", "notin"):
                self.read_membership(left, right)
            elif operand.op in ("eq", "ne"):
                self.read_equality(left, right)
                self.read_equality(right, left)
            left = right

    def read_membership(self, part, whole):
        if isinstance(whole, (nodes.List, nodes.Tuple)):
            for item in whole.items:
                self.read_equality(part, item)
            return
        # A variable is assumed to be a name that is looked up in a list, such as that of the required parameters.
        words = [word for word in self.list_texts(part) if word is not ANY]
        is_field = repr(whole) in self.mappings
        self.inside.update(word for word in words if not (is_field and word.isidentifier()))

    def read_equality(self, text, other):
        """Records the word that a text is compared with. If a slice is compared, the word is inside the text."""
        if isinstance(other, nodes.Const) and isinstance(other.value, str):
            is_slice = isinstance(text, nodes.Getitem) and not isinstance(text.arg, nodes.Const)
            (self.inside if is_slice and other.value else self.whole).add(other.value)

    def read_call(self, call):
        if isinstance(call, nodes.Filter):
            searches = call.name == "replace"
        else:
            searches = isinstance(call.node, nodes.Getattr) and call.node.attr in SEARCHES
        # Only the first argument is searched for.
        for argument in call.args[:1] if searches else []:
            self.inside.update(self.list_texts(argument))

    def list_texts(self, expression):
        """Returns the texts that an expression may evaluate to; `ANY` if they are unknown, none if it is no text."""
        match expression:
            case nodes.Const(value=str(text)):
                return [text]
            case nodes.Const():
                return []
            case nodes.Tuple(items=items):
                return [text for item in items for text in self.list_texts(item)]
            case nodes.Name(name=name) if name in self.assigned:
                values = self.assigned[name]
                if all(isinstance(value, nodes.Const) for value in values):
                    return [text for value in values for text in self.list_texts(value)]
        return [ANY]


def reads_field(read):
    """Returns whether an access reads a field, which a mapping has, and not a method or a character of a text."""
    if isinstance(read, nodes.Getattr):
        return not hasattr(str, read.attr)
    return isinstance(read.arg, nodes.Const) and isinstance(read.arg.value, str)
