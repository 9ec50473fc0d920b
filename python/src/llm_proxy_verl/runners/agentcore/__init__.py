"""Has AWS Bedrock AgentCore Runtime run agents: docs/agentcore.md. boto3 is loaded by whoever makes a call."""

from .agentcore_runner import AgentCoreRunner

__all__ = ["AgentCoreRunner"]
