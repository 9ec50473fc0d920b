"""Finds the words that a model's encoder searches for in messages; `template_words.py` finds those of a template.

Only functions that the entry point may call are read: DeepSeek's file also parses completions.
"""

import ast

from template_words import ANY, SEARCHES


def find_words(module, entry_point):
    """@returns the words that a text may have in it, and those that it may be as a whole"""
    search = WordSearch(find_constants(module))
    for function in find_reachable(module, entry_point):
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
    return found.values()


class WordSearch(ast.NodeVisitor):
    def __init__(self, constants):
        self.inside = set()
        self.whole = set()
        self.constants = constants

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
        # Names are looked up in lists and dictionaries; only constant texts are searched for in other texts.
        self.inside.update(word for word in self.list_texts(part) if word is not ANY)

    def read_equality(self, text, other):
        """A slice that equals a word means that the word is inside the text."""
        if isinstance(other, ast.Constant) and isinstance(other.value, str):
            is_slice = isinstance(text, ast.Subscript) and isinstance(text.slice, ast.Slice)
            (self.inside if is_slice and other.value else self.whole).add(other.value)

    def visit_Call(self, node):
        function = node.func
        if isinstance(function, ast.Attribute):
            is_pattern = isinstance(function.value, ast.Name) and function.value.id == "re"
            if is_pattern:
                self.inside.add(ANY)
            elif function.attr in SEARCHES:
                for argument in node.args[:1]:
                    self.inside.update(self.list_texts(argument))
        self.generic_visit(node)

    def list_texts(self, expression):
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
