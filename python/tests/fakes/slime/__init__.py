"""A fake of slime, which is not on PyPI, without torch, SGLang and Megatron: what its documented loader uses."""
