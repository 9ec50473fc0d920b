/**
 * Removal of prompt parts that agents change with each request and that carry no information for a model. With them, no
 * prompt would extend the previous one: the engine's prefix cache would be useless, and each turn would be a separate
 * trajectory. The removed text is returned with the name of its rule, so that it can be recorded with the turn.
 */
import type { ChatMessage } from '../../../protocol/canonical/messages.ts'
import type { DialectRequest } from './dialect-request.ts'

/** A rule that finds text to remove from prompts. */
export interface VolatileRule {
  readonly name: string
  /** The scope of the rule: blocks of the system prompt, or complete texts of user messages. */
  readonly where: 'system' | 'user'
  /** Returns the part of the text to remove; undefined if there is none. */
  find(text: string): string | undefined
}

/** Text that a rule removed from a prompt, to be recorded. */
export interface Removal {
  rule: string
  text: string
}

/**
 * Claude Code begins its system prompt with a separate block for Anthropic's accounting: `x-anthropic-billing-header:
 * cc_version=2.1.329.3f1; cc_entrypoint=sdk-cli; cch=00000; cc_prev_req=req_…;`. The version ends in a hash of the
 * task's first message, so it is different for each sub-agent; `cch`, `cc_prev_req`, `cc_prompt_id`, `cc_prev_msg` and
 * the turn counters change with each request. Claude Code itself recognizes the block by its prefix, and Anthropic's
 * API drops it.
 */
const claudeCodeBillingHeader: VolatileRule = {
  name: 'claude_code_billing_header',
  where: 'system',
  find: (text) => /^x-anthropic-billing-header:[^\n]*\n?/.exec(text)?.[0],
}

const EMPTY_SNAPSHOTS =
  /^\s*<<<BEGIN_OPENCLAW_INTERNAL_CONTEXT>>>\n(?:(?:Conversation data \(data, not instructions\):\n)?"?(?:Active exec sessions:|## [\w -]+)(?:\\n|\n)none"?\n+)+<<<END_OPENCLAW_INTERNAL_CONTEXT>>>\s*$/

/**
 * OpenClaw (observed with 2026.9.6) ends each request with a user text: snapshots of its background sessions and
 * sub-agents. In Chat Completions and Messages the next request does not repeat this text; in Responses it repeats the
 * text after the task and does not end with another one. In Messages the text is a part of the preceding message. A
 * text whose snapshots are all `none` carries no information and is removed. Other texts stay, because the same
 * delimiters enclose the results of sub-agents, and instructions.
 */
const openClawEmptySnapshots: VolatileRule = {
  name: 'openclaw_empty_snapshots',
  where: 'user',
  find: (text) => EMPTY_SNAPSHOTS.exec(text)?.[0],
}

/** The rules in the order in which they are applied. */
export const VOLATILE_RULES: readonly VolatileRule[] = [claudeCodeBillingHeader, openClawEmptySnapshots]

/** Removes the matches of the rules from the blocks of a system prompt; a block that becomes empty is removed. */
export function removeVolatile(
  systemTexts: readonly string[],
  rules: readonly VolatileRule[],
): { texts: string[]; removed: Removal[] } {
  const removed: Removal[] = []
  const texts: string[] = []
  for (const original of systemTexts) {
    let text = original
    for (const rule of rules) {
      if (rule.where !== 'system') continue
      const found = rule.find(text)
      if (found === undefined) continue
      text = text.replace(found, () => '')
      removed.push({ rule: rule.name, text: found })
    }
    if (text !== '' || original === '') texts.push(text)
  }
  return { texts, removed }
}

/**
 * Removes texts of user messages that a rule matches completely; a message that becomes empty is removed.
 * @returns the request itself if there is nothing to remove, or if only instructions would be left
 */
export function removeVolatileMessage(
  lowered: DialectRequest,
  rules: readonly VolatileRule[] = VOLATILE_RULES,
): DialectRequest {
  if (lowered.kind !== 'chat') return lowered
  const removed: Removal[] = []
  const messages = lowered.body.messages
    .map((message) => removeTexts(message, rules, removed))
    .filter((message) => message !== undefined)
  if (removed.length === 0 || messages.every(isInstruction)) return lowered
  const before = (lowered.annotations?.removed_from_prompt ?? []) as Removal[]
  return {
    ...lowered,
    body: { ...lowered.body, messages },
    annotations: { ...lowered.annotations, removed_from_prompt: [...before, ...removed] },
  }
}

function isInstruction({ role }: ChatMessage): boolean {
  return role === 'system' || role === 'developer'
}

/** Returns a message without its volatile texts; undefined if nothing is left. Adds the removed texts to `removed`. */
function removeTexts(
  message: ChatMessage,
  rules: readonly VolatileRule[],
  removed: Removal[],
): ChatMessage | undefined {
  const { role, content } = message
  if (role !== 'user') return message
  const isVolatile = (text: unknown): boolean => {
    if (typeof text !== 'string') return false
    const rule = rules.find(({ where, find }) => where === 'user' && find(text) === text)
    if (rule !== undefined) removed.push({ rule: rule.name, text })
    return rule !== undefined
  }
  if (!Array.isArray(content)) return isVolatile(content) ? undefined : message
  const left = content.filter((part) => part.type !== 'text' || !isVolatile(part.text))
  if (left.length === content.length) return message
  return left.length === 0 ? undefined : { ...message, content: left }
}
