/** What is measured of an agent that rewrites what it was given. */
import type { Agent } from '../parts/agent.ts'
import type { Step } from '../parts/script.ts'

export interface HistoryCase {
  agent: Agent
  does: string
  /** In the order in which they are answered. */
  steps: readonly Step[]
  /** Where not each step follows the one before it in the same conversation. */
  playbook?: object
  /** Of the proxy, in token mode. */
  flags?: readonly string[]
  rows: { token: number; chat: number }
}

export const DONE: Step = { says: 'Done.' }

export const call = (tool: string, args: Record<string, unknown>): Step => ({
  calls: [{ tool, arguments: args }],
})
