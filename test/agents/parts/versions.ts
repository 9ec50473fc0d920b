/**
 * The tested versions. A person examines how a new release changes its history (`NEWEST_AGENTS=1`) before it can fail a
 * commit.
 */
export const AGENT_VERSIONS: Readonly<Record<string, string>> = {
  '@ai-sdk/anthropic': '4.0.105',
  '@ai-sdk/openai': '4.0.118',
  '@ai-sdk/openai-compatible': '3.0.92',
  '@anthropic-ai/claude-code': '2.1.330',
  '@earendil-works/pi-coding-agent': '1.6.0',
  '@github/copilot': '1.0.102',
  harbor: '0.24.0',
  '@google/gemini-cli': '0.61.0',
  '@google/genai': '2.32.0',
  '@moonshot-ai/kimi-code': '2.1.0',
  '@nanocollective/nanocoder': '1.30.0',
  '@openai/agents': '0.20.0',
  '@openai/codex': '0.169.0',
  '@qwen-code/qwen-code': '0.24.4',
  // The runner accepts only the same version of core.
  '@stryker-mutator/core': '10.0.0',
  '@stryker-mutator/tap-runner': '10.0.0',
  ai: '7.0.173',
  cline: '3.0.65',
  deepagents: '0.7.32',
  'google-genai': '3.4.0',
  'mini-swe-agent': '2.4.6',
  openclaw: '2026.9.6',
  'openhands-sdk': '1.58.0',
  'opencode-ai': '1.18.33',
  'pydantic-ai-slim': '2.68.0',
  zod: '4.6.7',
}
