"""Finds the words that a template searches for in messages.

SmolLM3's and Nemotron's templates end a prompt differently if a message contains `/no_think`. A text without any of these
words can be replaced by another one without a change of the rest.
"""

from jinja2 import nodes

# Methods of texts that search for their arguments. Methods that only strip characters at the ends find no words.
SEARCHES = frozenset(
    ["startswith", "endswith", "find", "rfind", "index", "rindex", "count", "split", "rsplit", "partition", "rpartition"]
    + ["replace", "removeprefix", "removesuffix"]
)

# Contained in every text: the search term of a method is known only when the template runs.
ANY = ""


NO_WORDS = {"inside": [], "whole": []}


def find_words(syntax_tree):
    """@returns the words that a text may have in it, and those that it may be as a whole"""
    search = WordSearch(syntax_tree)
    for comparison in syntax_tree.find_all(nodes.Compare):
        search.read_comparison(comparison)
    for call in syntax_tree.find_all((nodes.Call, nodes.Filter)):
        search.read_call(call)
    return {"inside": sorted(search.inside), "whole": sorted(search.whole - {""})}


class WordSearch:
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
        # An expression with fields is not a text.
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
        # An expression that is not constant is a name that is looked up in a list, such as that of required parameters.
        words = [word for word in self.list_texts(part) if word is not ANY]
        is_field = repr(whole) in self.mappings
        self.inside.update(word for word in words if not (is_field and word.isidentifier()))

    def read_equality(self, text, other):
        """A slice that equals a word is inside the text; a role, a type or a complete text equals it as a whole."""
        if isinstance(other, nodes.Const) and isinstance(other.value, str):
            is_piece = isinstance(text, nodes.Getitem) and not isinstance(text.arg, nodes.Const)
            (self.inside if is_piece and other.value else self.whole).add(other.value)

    def read_call(self, call):
        if isinstance(call, nodes.Filter):
            searches = call.name == "replace"
        else:
            searches = isinstance(call.node, nodes.Getattr) and call.node.attr in SEARCHES
        # Only the first argument is searched for.
        for argument in call.args[:1] if searches else []:
            self.inside.update(self.list_texts(argument))

    def list_texts(self, expression):
        """Returns each text that an expression may be; an empty list if it is not a text."""
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
    if isinstance(read, nodes.Getattr):
        return not hasattr(str, read.attr)
    return isinstance(read.arg, nodes.Const) and isinstance(read.arg.value, str)
