"""A fake of verl for environments without it: the classes that llm_proxy_verl uses, with verl's signatures.

The classes do as little as possible. Tests compare their signatures with verl's own wheels.
"""

__version__ = "0.9.1"
