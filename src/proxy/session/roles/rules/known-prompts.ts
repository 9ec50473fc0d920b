/**
 * Rules that recognize requests by the beginning of their prompts. Most of these requests repeat the complete
 * conversation of the main agent, so that they would be inferred to be its continuation. Observed: Qwen Code 0.24.4,
 * Gemini CLI 0.61.0, Claude Code 2.1.330, pi 1.6.0, LangChain 1.4 (`SummarizationMiddleware`). Read in released
 * packages: Cline CLI 3.0.65, nanocoder 1.30.0.
 */
import type { DeclaredAgentRole } from '../agent-role.ts'
import { type AgentRoleRule, getLastUserText, getSystemText, isAgent, type RequestEvidence } from './rule.ts'

/** The properties by which a known prompt is recognized, and the role of its requests. */
interface PromptPattern {
  readonly name: string
  readonly line: DeclaredAgentRole
  /** A pattern of the user agent. Absent: the client is a library, or does not identify itself. */
  readonly agent?: RegExp
  /** The beginning of the system prompt. */
  readonly system?: RegExp
  /**
   * The beginning of the last user message; with the flag `m`, of one of its lines. It is used if `system` is absent.
   */
  readonly lastUser?: RegExp
}

const NEXT_SPEAKER = /^Analyze \*only\* the content and structure of your immediately preceding response/
const GEMINI_CLI = /^GeminiCLI/
const QWEN_CODE = /^QwenCode\//

const KNOWN_PROMPTS: readonly PromptPattern[] = [
  {
    name: 'claude_code_side_question',
    line: 'side',
    agent: /^claude-cli\//,
    lastUser: /^\[SUGGESTION MODE: |^<system-reminder>This is a side (?:question|request) from the user/m,
  },
  {
    name: 'qwen_code_compaction',
    line: 'compaction',
    agent: QWEN_CODE,
    system: /^\s*You are the component that summarizes a conversation when its context window/,
  },
  {
    name: 'qwen_code_memory',
    line: 'side',
    agent: QWEN_CODE,
    system:
      /^\s*(?:You are now acting as the managed memory extraction subagent|You are performing a managed memory dream|You are reviewing this conversation to extract reusable skills|You are selecting memories that will be useful)/,
  },
  {
    name: 'qwen_code_side_query',
    line: 'side',
    agent: QWEN_CODE,
    system:
      /^\s*(?:Generate a concise, sentence-case title|You generate session recaps|Write a short summary label describing what these tool calls)/,
  },
  {
    name: 'qwen_code_next_words',
    line: 'side',
    agent: QWEN_CODE,
    lastUser: new RegExp(`^\\[SUGGESTION MODE: |${NEXT_SPEAKER.source}`),
  },
  {
    name: 'gemini_cli_compaction',
    line: 'compaction',
    agent: GEMINI_CLI,
    system: /^\s*You are a specialized system component responsible for distilling chat history/,
  },
  {
    name: 'gemini_cli_side_query',
    line: 'side',
    agent: GEMINI_CLI,
    system: /^\s*You are (?:a specialized Task Routing AI|an expert code-editing assistant)/,
  },
  {
    name: 'gemini_cli_next_words',
    line: 'side',
    agent: GEMINI_CLI,
    lastUser: new RegExp(`^Summarize the user's primary intent or goal|${NEXT_SPEAKER.source}`),
  },
  {
    name: 'pi_compaction',
    line: 'compaction',
    system:
      /^You are a context summarization assistant\. Your task is to read a conversation between a user and an AI/,
  },
  {
    name: 'cline_compaction',
    line: 'compaction',
    system: /^Summarize the provided coding session into a concise continuation note/,
  },
  {
    name: 'nanocoder_compaction',
    line: 'compaction',
    system:
      /^You compact coding-agent conversations without losing information that future turns will need\./,
  },
  {
    name: 'langchain_compaction',
    line: 'compaction',
    lastUser: /^<role>\nContext Extraction Assistant\n<\/role>/,
  },
]

function matches(evidence: RequestEvidence, { agent, system, lastUser }: PromptPattern): boolean {
  if (agent !== undefined && !isAgent(evidence, agent)) return false
  return system?.test(getSystemText(evidence)) ?? lastUser!.test(getLastUserText(evidence))
}

export const KNOWN_PROMPT_RULES: readonly AgentRoleRule[] = KNOWN_PROMPTS.map((prompt) => ({
  name: prompt.name,
  find: (evidence) => (matches(evidence, prompt) ? prompt.line : undefined),
}))
