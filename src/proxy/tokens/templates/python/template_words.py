"""The words that a template looks for in what messages say.

SmolLM3's and Nemotron's end a prompt in another way where a message has `/no_think` in it. A text that has none of the words
that a template looks for is any text to it, so that another one can stand in its place.
"""

from jinja2 import nodes

# Methods of texts that look for their arguments. What only takes characters away at the ends finds no words.
SEARCHES = frozenset(
    ["startswith", "endswith", "find", "rfind", "index", "rindex", "count", "split", "rsplit", "partition", "rpartition"]
    + ["replace", "removeprefix", "removesuffix"]
)

# In every text: for what a method looks for that is known only when the template runs.
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
        # What fields are taken of is no text, whatever else has its name.
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
        # What is known only then is a name that is looked up in a list: of parameters that are required, for instance.
        words = [word for word in self.list_texts(part) if word is not ANY]
        is_field = repr(whole) in self.mappings
        self.inside.update(word for word in words if not (is_field and word.isidentifier()))

    def read_equality(self, text, other):
        """A piece of a text that is a word is in the text; a role, a type or a text as a whole are that word."""
        if isinstance(other, nodes.Const) and isinstance(other.value, str):
            is_piece = isinstance(text, nodes.Getitem) and not isinstance(text.arg, nodes.Const)
            (self.inside if is_piece and other.value else self.whole).add(other.value)

    def read_call(self, call):
        if isinstance(call, nodes.Filter):
            searches = call.name == "replace"
        else:
            searches = isinstance(call.node, nodes.Getattr) and call.node.attr in SEARCHES
        # The first is what is looked for, all the others what is done then.
        for argument in call.args[:1] if searches else []:
            self.inside.update(self.list_texts(argument))

    def list_texts(self, expression):
        """Each text that an expression may be; none for what is no text."""
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
