/** Finds the agent role of each turn of a session. `docs/lines.md` explains the rules. */
import { type AgentRole, type DeclaredAgentRole, isDeclaredRole } from './agent-role.ts'
import type { AgentRoleAnnotation } from './declared-role.ts'
import {
  type MessagePath,
  type OpeningKeys,
  type RoleInput,
  type RoleRequest,
  RoleRequestReader,
} from './opening.ts'

/** The names of the rules for requests without a declared role, in order of precedence. */
export const INFERENCES = ['continues', 'opens_alike', 'first', 'first_with_tools', 'new_opening'] as const

/** The agent role of a turn, and the rule that determined it. */
export interface AgentRoleMatch {
  readonly agentRole: AgentRole
  /** The name of the rule: one of {@link INFERENCES}, or the one by which the role was declared. */
  readonly rule: string
}

/**
 * The agent roles of a session's turns. All turns must be added in index order, whatever their outcome. The role of a
 * turn depends only on earlier turns, so that it does not change as the session continues.
 */
export class AgentRoleFinder {
  readonly #reader = new RoleRequestReader()
  readonly #openings = new Map<string, AgentRole>()
  #subagentCount = 0
  /** Whether a turn with role `main` is completed or in flight. */
  #hasMain = false
  /**
   * Whether a turn has role `main` for a better reason than a default: it was declared, continues another or has tools.
   */
  #mainIsSure = false

  /** Adds a turn. @returns its agent role */
  add(turn: RoleInput): AgentRoleMatch {
    const request = this.#reader.read(turn)
    const stated = getDeclaredRole(turn)
    const found =
      stated === undefined
        ? this.#infer(request)
        : { agentRole: this.#resolve(stated.told, request), rule: stated.rule }
    this.#remember(turn, request, found)
    return found
  }

  #infer(request: RoleRequest): AgentRoleMatch & { rule: (typeof INFERENCES)[number] } {
    const continued = this.#continued(request)
    if (continued !== undefined) return { agentRole: continued, rule: 'continues' }
    const known = this.#findByOpening(request.opening)
    if (known !== undefined) return { agentRole: known, rule: 'opens_alike' }
    if (!this.#hasMain) return { agentRole: 'main', rule: 'first' }
    if (!this.#mainIsSure && request.opening.toolsKey !== '')
      return { agentRole: 'main', rule: 'first_with_tools' }
    return { agentRole: this.#newSubagent(), rule: 'new_opening' }
  }

  /** Resolves a declared role: if the request declares only `subagent`, determines which one it is. */
  #resolve(stated: DeclaredAgentRole, request: RoleRequest): AgentRole {
    if (stated !== 'subagent') return stated
    const known = this.#continued(request) ?? this.#findByOpening(request.opening)
    return known?.startsWith('subagent:') ? known : this.#newSubagent()
  }

  #continued({ opening, last }: RoleRequest): AgentRole | undefined {
    const line = findContinuedRole(last, getOpeningKey(opening))
    // A request that continues a compaction is one of the main agent, which continues with the summary.
    return line === 'compaction' ? 'main' : line
  }

  #findByOpening(opening: OpeningKeys): AgentRole | undefined {
    const { agent, task } = getSimilarityKeys(opening)
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

  #remember(
    turn: RoleInput,
    { opening, last }: RoleRequest,
    { agentRole: line, rule }: AgentRoleMatch,
  ): void {
    // Only a request with messages can be continued.
    if (last.parent !== undefined) last.lines.set(getOpeningKey(opening), line)
    if (line === 'side' || line === 'compaction') return
    const { agent, task } = getSimilarityKeys(opening)
    this.#addOpenings(task, line)
    // A sub-agent's system prompt and tools do not identify it: each sub-agent has a separate role.
    if (line !== 'main') return
    this.#addOpenings([agent], line)
    this.#hasMain ||= turn.status === 'completed' || turn.status === 'open'
    this.#mainIsSure ||= !GUESSES.has(rule) || opening.toolsKey !== ''
  }

  /** Adds openings. Does not replace existing ones: a sub-agent may start with the complete main conversation. */
  #addOpenings(keys: readonly string[], line: AgentRole): void {
    for (const key of keys) if (!this.#openings.has(key)) this.#openings.set(key, line)
  }
}

/** The rules that may assign the main role only as a default. */
const GUESSES: ReadonlySet<string> = new Set(['first', 'opens_alike'])

function getDeclaredRole({ annotations }: RoleInput): AgentRoleAnnotation | undefined {
  // Most turns declare no role, so parsing is skipped.
  if (!annotations.includes('"line"')) return undefined
  const { line } = JSON.parse(annotations) as { line?: Partial<AgentRoleAnnotation> | null }
  return isDeclaredRole(line?.told) ? { told: line.told, rule: line.rule ?? 'header' } : undefined
}

/**
 * Returns the role of the earlier request that a request continues: the one with the most messages that, followed by a
 * completion, begin the continuing request. If several requests had these messages, the one with the same system prompt
 * and tools counts, else the latest that is no side request: an agent does not continue a side request with another
 * system prompt.
 * @param openingKey the {@link getOpeningKey} of the request
 */
function findContinuedRole(last: MessagePath, openingKey: string): AgentRole | undefined {
  let answer: MessagePath | undefined = last
  while (answer !== undefined && !(answer.role === 'assistant' && answer.parent!.lines.size > 0))
    answer = answer.parent
  const lines = answer?.parent?.lines
  return lines?.get(openingKey) ?? [...(lines?.values() ?? [])].findLast((line) => line !== 'side')
}

/** Returns a key of the system prompt and the tools. */
function getOpeningKey({ systemKey, toolsKey }: OpeningKeys): string {
  return `${systemKey}\n${toolsKey}`
}

/**
 * Returns the keys by which similar openings are found. Each key has two of the three parts, since one of them may
 * change: a summary replaces the first message, tools change, or the system prompt contains the time. There is no task
 * key with a missing part, because a helper without tools may receive the same question.
 */
function getSimilarityKeys({ systemKey, toolsKey, firstKey }: OpeningKeys): {
  agent: string
  task: string[]
} {
  const task: string[] = []
  if (systemKey !== '' && firstKey !== '') task.push(`system\n${systemKey}\n${firstKey}`)
  if (toolsKey !== '' && firstKey !== '') task.push(`tools\n${toolsKey}\n${firstKey}`)
  return { agent: `agent\n${systemKey}\n${toolsKey}`, task }
}
