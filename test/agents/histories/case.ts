/** A measurement of an agent that rewrites its history. */
import type { Agent } from '../parts/agent.ts'
import type { Step } from '../parts/script.ts'

export interface HistoryCase {
  agent: Agent
  does: string
  /** Steps in the order in which the model responds to them. */
  steps: readonly Step[]
  /** Needed where steps do not follow each other in one conversation. */
  playbook?: object
  /** Flags of the proxy, in token mode. */
  flags?: readonly string[]
  rows: { token: number; chat: number }
}

export const DONE: Step = { says: 'Done.' }

export const call = (tool: string, args: Record<string, unknown>): Step => ({
  calls: [{ tool, arguments: args }],
})
