/** Finds the agent role of each turn of a session. Rules and reasons: `docs/lines.md`. */
import { type AgentRole, type DeclaredAgentRole, isDeclaredRole } from './agent-role.ts'
import type { AgentRoleAnnotation } from './declared-role.ts'
import {
  type MessagePath,
  type Opening,
  type RoleInput,
  type RoleRequest,
  RoleRequestReader,
} from './opening.ts'

/** The rules for requests without a declared role, in order of precedence. */
export const INFERENCES = ['continues', 'opens_alike', 'first', 'first_with_tools', 'new_opening'] as const

export interface AgentRoleMatch {
  readonly line: AgentRole
  /** The name of the rule that determined the role. */
  readonly rule: string
}

/**
 * Determines the agent role of each turn. It receives the turns of a session in order, whatever their outcome. The role
 * of a turn depends only on the turns before it, so that it does not change as the session continues.
 */
export class AgentRoleFinder {
  readonly #reader = new RoleRequestReader()
  readonly #openings = new Map<string, AgentRole>()
  #subagentCount = 0
  /** Whether a request with role main is completed or in flight. */
  #hasMain = false
  /** Whether the main role was declared, was continued or has tools. */
  #mainIsSure = false

  add(turn: RoleInput): AgentRoleMatch {
    const call = this.#reader.read(turn)
    const stated = getDeclaredRole(turn)
    const found =
      stated === undefined ? this.#infer(call) : { line: this.#named(stated.told, call), rule: stated.rule }
    this.#remember(turn, call, found)
    return found
  }

  #infer(call: RoleRequest): AgentRoleMatch & { rule: (typeof INFERENCES)[number] } {
    const continued = this.#continued(call)
    if (continued !== undefined) return { line: continued, rule: 'continues' }
    const known = this.#findByOpening(call.opening)
    if (known !== undefined) return { line: known, rule: 'opens_alike' }
    if (!this.#hasMain) return { line: 'main', rule: 'first' }
    if (!this.#mainIsSure && call.opening.toolsKey !== '') return { line: 'main', rule: 'first_with_tools' }
    return { line: this.#newSubagent(), rule: 'new_opening' }
  }

  /** Resolves a declared role: finds which sub-agent it is if the request declares only `subagent`. */
  #named(stated: DeclaredAgentRole, call: RoleRequest): AgentRole {
    if (stated !== 'subagent') return stated
    const known = this.#continued(call) ?? this.#findByOpening(call.opening)
    return known?.startsWith('subagent:') ? known : this.#newSubagent()
  }

  #continued({ opening, last }: RoleRequest): AgentRole | undefined {
    const line = findContinuedRole(last, getOpeningKey(opening))
    // A request that continues a compaction resumes the main work.
    return line === 'compaction' ? 'main' : line
  }

  #findByOpening(opening: Opening): AgentRole | undefined {
    const { agent, task } = getLikenesses(opening)
    for (const key of [...task, agent]) {
      const line = this.#openings.get(key)
      if (line !== undefined) return line
    }
    return undefined
  }

  #newSubagent(): AgentRole {
    this.#subagentCount += 1
    return `subagent:${this.#subagentCount}`
  }

  #remember(turn: RoleInput, { opening, last }: RoleRequest, { line, rule }: AgentRoleMatch): void {
    // A request without messages cannot be continued.
    if (last.parent !== undefined) last.lines.set(getOpeningKey(opening), line)
    if (line === 'side' || line === 'compaction') return
    const { agent, task } = getLikenesses(opening)
    this.#know(task, line)
    // Every sub-agent has a separate role, even if another one has the same system prompt and tools.
    if (line !== 'main') return
    this.#know([agent], line)
    this.#hasMain ||= turn.status === 'completed' || turn.status === 'open'
    this.#mainIsSure ||= !GUESSES.has(rule) || opening.toolsKey !== ''
  }

  /** Adds openings without replacing known ones: a sub-agent may start with the complete main conversation. */
  #know(likenesses: readonly string[], line: AgentRole): void {
    for (const key of likenesses) if (!this.#openings.has(key)) this.#openings.set(key, line)
  }
}

/** The rules that assign the main role only as a default. */
const GUESSES: ReadonlySet<string> = new Set(['first', 'opens_alike'])

function getDeclaredRole({ annotations }: RoleInput): AgentRoleAnnotation | undefined {
  // Most turns declare no role: skip parsing their annotations.
  if (!annotations.includes('"line"')) return undefined
  const { line } = JSON.parse(annotations) as { line?: Partial<AgentRoleAnnotation> | null }
  return isDeclaredRole(line?.told) ? { told: line.told, rule: line.rule ?? 'header' } : undefined
}

/**
 * Returns the role of the request that this one continues: the longest one whose messages are followed by a completion
 * here. Among several, it prefers the one with the same system prompt and tools, else the latest that is not a side
 * request: an agent never continues a side request with another system prompt.
 */
function findContinuedRole(last: MessagePath, spokenTo: string): AgentRole | undefined {
  let answer: MessagePath | undefined = last
  while (answer !== undefined && !(answer.role === 'assistant' && answer.parent!.lines.size > 0))
    answer = answer.parent
  const lines = answer?.parent?.lines
  return lines?.get(spokenTo) ?? [...(lines?.values() ?? [])].findLast((line) => line !== 'side')
}

function getOpeningKey({ systemKey, toolsKey }: Opening): string {
  return `${systemKey}\n${toolsKey}`
}

/**
 * Returns keys of two of three parts each, since one part may change: a summary replaces the first message, the tools
 * change, or the system prompt contains the time. A missing part does not count as equal: a helper without tools may
 * receive the same question.
 */
function getLikenesses({ systemKey, toolsKey, firstKey }: Opening): { agent: string; task: string[] } {
  const task: string[] = []
  if (systemKey !== '' && firstKey !== '') task.push(`system\n${systemKey}\n${firstKey}`)
  if (toolsKey !== '' && firstKey !== '') task.push(`tools\n${toolsKey}\n${firstKey}`)
  return { agent: `agent\n${systemKey}\n${toolsKey}`, task }
}
