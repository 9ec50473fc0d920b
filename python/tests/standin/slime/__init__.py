"""slime without torch, SGLang and Megatron, for which it is not on PyPI: what its documented loader uses."""
