"""A policy that learns through llm-proxy on a laptop: model, engine, agents and a GRPO trainer in a few files."""
