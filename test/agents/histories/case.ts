/** The measurement of an agent that changes its history. */
import type { Agent } from '../parts/agent.ts'
import type { Step } from '../parts/script.ts'

export interface HistoryCase {
  agent: Agent
  /** What the agent changes, as in docs/agents.md. */
  change: string
  /** The model's completions, in order. */
  steps: readonly Step[]
  /** Default: the steps in one conversation. */
  playbook?: object
  /** Flags of the proxy. */
  flags?: readonly string[]
  rows: { token: number; chat: number }
}

export const DONE: Step = { content: 'Done.' }

export const callTool = (tool: string, args: Record<string, unknown>): Step => ({
  toolCalls: [{ tool, arguments: args }],
})
