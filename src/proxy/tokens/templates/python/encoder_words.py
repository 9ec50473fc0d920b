"""Finds the words that a model's encoder searches for in messages; `template_words.py` finds those of a template.

Only definitions that the entry point may use are searched, because DeepSeek's file also contains a parser of
completions.
"""

import ast

from template_words import ANY, SEARCHES


def find_words(module, entry_point):
    """Returns the words that the encoder searches for inside texts, and those that it compares with complete texts."""
    functions = find_reachable(module, entry_point)
    sources = BareVariables(functions, entry_point)
    search = WordSearch(find_constants(module))
    for name, function in functions.items():
        search.fields = ExpressionKinds(function, sources.get_bare(name))
        search.visit(function)
    return {"inside": sorted(search.inside), "whole": sorted(search.whole - {""})}


def find_constants(module):
    """Returns the texts that are assigned to module-level names."""
    found = {}
    for statement in module.body:
        if isinstance(statement, (ast.Assign, ast.AnnAssign)) and isinstance(statement.value, ast.Constant):
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                if isinstance(target, ast.Name) and isinstance(statement.value.value, str):
                    found[target.id] = statement.value.value
    return found


def find_reachable(module, entry_point):
    """Returns the definitions of the entry point and of everything that it uses, directly or indirectly."""
    defined = {
        node.name: node
        for node in module.body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    }
    waiting, found = [entry_point], {}
    while waiting:
        name = waiting.pop()
        if name in found or name not in defined:
            continue
        found[name] = defined[name]
        waiting.extend(node.id for node in ast.walk(defined[name]) if isinstance(node, ast.Name))
    return found


# The fields of a message whose values are not contents.
BARE_FIELDS = ("role", "type", "id", "tool_call_id")


class BareVariables:
    """The bare variables of functions: those whose values are only roles, identifiers, settings and constants, but
    never contents."""

    def __init__(self, functions, entry_point):
        self.functions = functions
        self.values = {name: find_values(function) for name, function in functions.items()}
        self.read_arguments(entry_point)
        # All variables are assumed to be bare until one of their values is not, so that variables which are assigned to
        # each other can be bare.
        self.bare = {name: {*values} for name, values in self.values.items()}
        while self.remove_contents():
            pass

    def get_bare(self, name):
        """Returns the names of a function's bare variables."""
        return self.bare[name]

    def read_arguments(self, entry_point):
        """Adds the arguments of all calls of a function to the values of its parameters."""
        called = {}
        for function in self.functions.values():
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                    called.setdefault(node.func.id, []).append((function.name, node))
        nodes = [node for function in self.functions.values() for node in ast.walk(function)]
        uses = [node.id for node in nodes if isinstance(node, ast.Name)]
        for name, function in self.functions.items():
            calls = called.get(name, [])
            for at, parameter in enumerate(get_parameters(function)):
                values = self.values[name].setdefault(parameter.arg, [])
                if name == entry_point:
                    values += [(name, ANY_VALUE)] if at == 0 else []
                # A function that is used as a value may be called with any arguments.
                elif uses.count(name) > len(calls):
                    values.append((name, ANY_VALUE))
                else:
                    values += [(caller, find_argument(call, at, parameter.arg)) for caller, call in calls]

    def remove_contents(self):
        """Removes a variable that may have a content. Returns whether there was one."""
        for name, values in self.values.items():
            for variable in [*self.bare[name]]:
                if not all(is_bare(value, self.bare[scope]) for scope, value in values[variable]):
                    self.bare[name].discard(variable)
                    return True
        return False


# Represents an unknown value.
ANY_VALUE = ast.Name("@any", ast.Load())


def find_values(function):
    """Returns, by variable, the values that a function assigns, as pairs of the function's name and the value."""
    values = {}

    def add(name, value):
        values.setdefault(name, []).append((function.name, value))

    assigned = [pair for node in ast.walk(function) for pair in list_assignments(node)]
    for target, value in assigned:
        add(target.id, value)
    # The values of all other variables are unknown: those of loops, comprehensions and other unpacking, and parameters
    # whose arguments cannot be determined.
    known = {id(target) for target, _ in assigned}
    shown = {id(parameter) for parameter in get_parameters(function)}
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) and id(node) not in known:
            add(node.id, ANY_VALUE)
        elif isinstance(node, ast.arg) and id(node) not in shown:
            add(node.arg, ANY_VALUE)
    return values


def list_assignments(node):
    """Returns pairs of the variables that a statement assigns and their values."""
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=values)) if len(targets) == len(values):
            pairs = [*zip(targets, values)]
        case ast.Assign(targets=[target], value=value) | ast.AugAssign(target=target, value=value):
            pairs = [(target, value)]
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            pairs = [(target, value)]
        case _:
            return []
    return [(target, value) for target, value in pairs if isinstance(target, ast.Name)]


def get_parameters(function):
    """Returns the parameters of a function; none for a class."""
    if isinstance(function, ast.ClassDef):
        return []
    return [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]


def find_argument(call, at, name):
    """Returns the argument for a parameter in a call; a constant if the call omits it."""
    if any(isinstance(value, ast.Starred) for value in call.args) or any(keyword.arg is None for keyword in call.keywords):
        return ANY_VALUE
    named = [keyword.value for keyword in call.keywords if keyword.arg == name]
    given = [*call.args[at : at + 1], *named]
    return given[0] if given else ast.Constant(None)


def is_bare(expression, bare):
    """Returns whether the value of an expression is never a content. `bare` are the bare variables."""
    match expression:
        case ast.Constant():
            return True
        case ast.Name(id=name):
            return name in bare
        case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=field), *others]):
            return field in BARE_FIELDS and all(is_bare(value, bare) for value in others)
        case ast.Subscript(slice=ast.Constant(value=field)) if isinstance(field, str):
            return field in BARE_FIELDS
        case ast.Subscript(value=value):
            return is_bare(value, bare)
        case ast.IfExp(body=body, orelse=other):
            return is_bare(body, bare) and is_bare(other, bare)
        case ast.BoolOp(values=values):
            return all(is_bare(value, bare) for value in values)
    return False


class ExpressionKinds:
    """A classifier of a function's expressions: bare ones, and mappings."""

    def __init__(self, function, bare):
        self.bare = bare
        reads = [get_read_value(node) for node in ast.walk(function)]
        tested = [node.args[0] for node in ast.walk(function) if is_type_test(node)]
        self.mappings = {ast.dump(value) for value in reads if value} - {ast.dump(value) for value in tested}

    def is_bare(self, expression):
        return is_bare(expression, self.bare)

    def is_mapping(self, expression):
        return ast.dump(expression) in self.mappings


def get_read_value(node):
    """Returns the mapping whose field an expression reads; None for other expressions."""
    match node:
        case ast.Call(func=ast.Attribute(value=value, attr="get")):
            return value
        case ast.Subscript(value=value, slice=ast.Constant(value=str())):
            return value


def is_type_test(node):
    """Returns whether an expression tests the type of a value, which may then be a text."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance"


class WordSearch(ast.NodeVisitor):
    """A collector of words from the comparisons and method calls in an encoder's code."""

    def __init__(self, constants):
        self.inside = set()
        self.whole = set()
        self.constants = constants
        self.fields = None

    def visit_Compare(self, node):
        left = node.left
        for operator, right in zip(node.ops, node.comparators):
            if isinstance(operator, (ast.In, ast.NotIn)):
                self.read_membership(left, right)
            elif isinstance(operator, (ast.Eq, ast.NotEq)):
                self.read_equality(left, right)
                self.read_equality(right, left)
            left = right
        self.generic_visit(node)

    def read_membership(self, part, whole):
        if isinstance(whole, (ast.List, ast.Tuple, ast.Set)):
            for item in whole.elts:
                self.read_equality(part, item)
            return
        # A variable is assumed to be looked up in a list or a dictionary; only constant texts are searched for in
        # texts.
        words = [word for word in self.list_texts(part) if word is not ANY]
        is_field = self.fields.is_mapping(whole)
        self.inside.update(word for word in words if not (is_field and word.isidentifier()))

    def read_equality(self, text, other):
        """Records the word that a text is compared with. If a slice is compared, the word is inside the text."""
        if isinstance(other, ast.Constant) and isinstance(other.value, str) and not self.fields.is_bare(text):
            is_slice = isinstance(text, ast.Subscript) and isinstance(text.slice, ast.Slice)
            (self.inside if is_slice and other.value else self.whole).add(other.value)

    def visit_Call(self, node):
        function = node.func
        if isinstance(function, ast.Attribute):
            is_pattern = isinstance(function.value, ast.Name) and function.value.id == "re"
            if is_pattern:
                self.inside.update([] if all(map(self.fields.is_bare, node.args)) else [ANY])
            elif function.attr in SEARCHES and not self.fields.is_bare(function.value):
                for argument in node.args[:1]:
                    self.inside.update(self.list_texts(argument))
        self.generic_visit(node)

    def list_texts(self, expression):
        """Returns the texts that an expression may evaluate to; `ANY` if they are unknown, none if it is no text."""
        match expression:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.Constant():
                return []
            case ast.Tuple(elts=items):
                return [text for item in items for text in self.list_texts(item)]
            case ast.Name(id=name) if name in self.constants:
                return [self.constants[name]]
        return [ANY]
