/** Finds the line of each turn of a session. Rules and reasons: `docs/lines.md`. */
import { type AgentRole, type DeclaredRole, isDeclaredRole } from './agent-role.ts'
import type { AgentRoleAnnotation } from './declared-role.ts'
import {
  type MessagePath,
  type Opening,
  type RoleInput,
  type RoleRequest,
  RoleRequestReader,
} from './opening.ts'

/** Rules for calls that say nothing, in the order in which they are asked. */
export const INFERENCES = ['continues', 'opens_alike', 'first', 'first_with_tools', 'new_opening'] as const

export interface AgentRoleMatch {
  readonly line: AgentRole
  /** The name of the rule that found it. */
  readonly rule: string
}

/**
 * Takes the turns of a session in call order, whatever became of them. A turn's line depends on the turns before it and
 * on nothing later, so that it stays what it is while the session goes on.
 */
export class AgentRoleFinder {
  readonly #reader = new RoleRequestReader()
  readonly #openings = new Map<string, AgentRole>()
  #subagentCount = 0
  /** Whether a call of the main line has been answered, or may yet be. */
  #hasMain = false
  /** Whether the main line was stated, or goes on, or has tools. */
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
    const alike = this.#opensAlike(call.opening)
    if (alike !== undefined) return { line: alike, rule: 'opens_alike' }
    if (!this.#hasMain) return { line: 'main', rule: 'first' }
    if (!this.#mainIsSure && call.opening.toolsKey !== '') return { line: 'main', rule: 'first_with_tools' }
    return { line: this.#newSubagent(), rule: 'new_opening' }
  }

  /** Which one, where a call only says that it is a sub-agent's. */
  #named(stated: DeclaredRole, call: RoleRequest): AgentRole {
    if (stated !== 'subagent') return stated
    const known = this.#continued(call) ?? this.#opensAlike(call.opening)
    return known?.startsWith('subagent:') ? known : this.#newSubagent()
  }

  #continued({ opening, last }: RoleRequest): AgentRole | undefined {
    const line = findContinuedRole(last, spokenTo(opening))
    // What goes on from a summary is the work that it sums up.
    return line === 'compaction' ? 'main' : line
  }

  #opensAlike(opening: Opening): AgentRole | undefined {
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
    // Nobody goes on from what nobody said.
    if (last.parent !== undefined) last.lines.set(spokenTo(opening), line)
    if (line === 'side' || line === 'compaction') return
    const { agent, task } = getLikenesses(opening)
    this.#know(task, line)
    // Every sub-agent is a line of its own, even if another one has the same system prompt and tools.
    if (line !== 'main') return
    this.#know([agent], line)
    this.#hasMain ||= turn.status === 'completed' || turn.status === 'open'
    this.#mainIsSure ||= !GUESSES.has(rule) || opening.toolsKey !== ''
  }

  /** What is known already stays: a sub-agent may begin with the whole of the main line's conversation. */
  #know(likenesses: readonly string[], line: AgentRole): void {
    for (const key of likenesses) if (!this.#openings.has(key)) this.#openings.set(key, line)
  }
}

/** Rules that make a call main because nothing better is known. */
const GUESSES: ReadonlySet<string> = new Set(['first', 'opens_alike'])

function getDeclaredRole({ annotations }: RoleInput): AgentRoleAnnotation | undefined {
  // Most turns have none, and are not parsed for it.
  if (!annotations.includes('"line"')) return undefined
  const { line } = JSON.parse(annotations) as { line?: Partial<AgentRoleAnnotation> | null }
  return isDeclaredRole(line?.told) ? { told: line.told, rule: line.rule ?? 'header' } : undefined
}

/**
 * The line of the call that this one goes on from: the longest one that is followed by an answer here. If there are
 * several, the one that spoke to the same; else the latest, but no side call, which nobody goes on from with another
 * system prompt.
 */
function findContinuedRole(last: MessagePath, spokenTo: string): AgentRole | undefined {
  let answer: MessagePath | undefined = last
  while (answer !== undefined && !(answer.role === 'assistant' && answer.parent!.lines.size > 0))
    answer = answer.parent
  const lines = answer?.parent?.lines
  return lines?.get(spokenTo) ?? [...(lines?.values() ?? [])].findLast((line) => line !== 'side')
}

function spokenTo({ systemKey, toolsKey }: Opening): string {
  return `${systemKey}\n${toolsKey}`
}

/**
 * Two of three: a conversation may lose its first message to a summary, be given other tools, or tell another time.
 * What is not there is no likeness: a helper without tools may well be asked the same question.
 */
function getLikenesses({ systemKey, toolsKey, firstKey }: Opening): { agent: string; task: string[] } {
  const task: string[] = []
  if (systemKey !== '' && firstKey !== '') task.push(`system\n${systemKey}\n${firstKey}`)
  if (toolsKey !== '' && firstKey !== '') task.push(`tools\n${toolsKey}\n${firstKey}`)
  return { agent: `agent\n${systemKey}\n${toolsKey}`, task }
}
