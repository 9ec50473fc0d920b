/**
 * What agents put into a prompt that changes from call to call and says nothing to a model. Left in, it would make
 * each call's prompt a new one: no prefix to share, and a trajectory of its own for every turn. Each rule has a name;
 * what it took out is returned, so that a turn can show it.
 */

export interface VolatileRule {
  readonly name: string
  /** @returns the part of a block of the system prompt that this rule takes out; undefined: none */
  find(systemText: string): string | undefined
}

/** What a rule took out of a prompt, for the record. */
export interface Removal {
  rule: string
  text: string
}

/**
 * Claude Code begins its system prompt with a block of its own for Anthropic's accounting:
 * `x-anthropic-billing-header: cc_version=2.1.329.3f1; cc_entrypoint=sdk-cli; cch=00000; cc_prev_req=req_…;`. The
 * version ends in a hash of the task's first message, so that sub-agents differ; `cch`, `cc_prev_req`, `cc_prompt_id`,
 * `cc_prev_msg` and the turn counters change with each call. Claude Code itself knows the block by these first words,
 * and its API drops it.
 */
const claudeCodeBillingHeader: VolatileRule = {
  name: 'claude_code_billing_header',
  find: (systemText) => /^x-anthropic-billing-header:[^\n]*\n?/.exec(systemText)?.[0],
}

/** In the order in which they are applied. */
export const VOLATILE_RULES: readonly VolatileRule[] = [claudeCodeBillingHeader]

/** Takes what the rules find out of the blocks of a system prompt; a block of which nothing is left goes with it. */
export function removeVolatile(
  systemTexts: readonly string[],
  rules: readonly VolatileRule[],
): { texts: string[]; removed: Removal[] } {
  const removed: Removal[] = []
  const texts: string[] = []
  for (const original of systemTexts) {
    let text = original
    for (const rule of rules) {
      const found = rule.find(text)
      if (found === undefined) continue
      text = text.replace(found, () => '')
      removed.push({ rule: rule.name, text: found })
    }
    if (text !== '' || original === '') texts.push(text)
  }
  return { texts, removed }
}
