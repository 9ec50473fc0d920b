"""Tokenizes texts with the library of a published tokenizer: a JSON list of texts in, a list of lists of ids out.

The folder has a tiktoken.model and the files of Kimi K2, or a tekken.json. mistral-common never encodes text as a special
token; this program does, as in a rendered chat template.
"""

import ast
import json
import re
import sys
from pathlib import Path

import tiktoken
from mistral_common.tokens.tokenizers.tekken import Tekkenizer
from tiktoken.load import load_tiktoken_bpe


def open_tiktoken(folder):
    config = json.loads((folder / "tokenizer_config.json").read_text())
    constants = read_class_constants(folder / "tokenization_kimi.py")
    ranks = load_tiktoken_bpe(str(folder / "tiktoken.model"))
    names = {int(token_id): token["content"] for token_id, token in config["added_tokens_decoder"].items()}
    reserved = range(len(ranks), len(ranks) + constants["num_reserved_special_tokens"])
    special = {names.get(token_id, f"<|reserved_token_{token_id}|>"): token_id for token_id in reserved}
    model = tiktoken.Encoding("kimi", pat_str=constants["pat_str"], mergeable_ranks=ranks, special_tokens=special)
    return lambda text: model.encode(text, allowed_special="all")


def read_class_constants(path):
    """Returns the assigned numbers and joined lists of the file's class, without running it."""
    (body,) = [node.body for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
    constants = {}
    for node in body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            separator = ast.literal_eval(node.value.func.value)
            constants[node.targets[0].id] = separator.join(ast.literal_eval(node.value.args[0]))
        elif isinstance(node, ast.Assign):
            constants[node.targets[0].id] = ast.literal_eval(node.value)
    return constants


def open_tekken(folder):
    tekken = Tekkenizer.from_file(folder / "tekken.json")
    special = tekken._special_tokens_reverse_vocab
    # The longest first, because an expression takes the first alternative that matches.
    names = "|".join(re.escape(name) for name in sorted(special, key=len, reverse=True))

    def encode(text):
        ids = []
        for part in re.split(f"({names})", text):
            ids += [special[part]] if part in special else tekken.encode(part, bos=False, eos=False)
        return ids

    return encode


folder = Path(sys.argv[1])
encode = open_tekken(folder) if (folder / "tekken.json").exists() else open_tiktoken(folder)
json.dump([encode(text) for text in json.load(sys.stdin)], sys.stdout)
