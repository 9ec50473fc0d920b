/** The model's completions for an agent, step by step, as a playbook of the embedded engine. */

export interface ScriptedCall {
  tool: string
  arguments: Record<string, unknown>
}

/** One completion of the model; `$<folder>` stands for the folder that the task names. */
export interface Step {
  thinks?: string
  says?: string
  calls?: readonly ScriptedCall[]
}

/** Every task names the folder of its rollout in these words. */
export const FOLDER_OF_TASK = 'in the folder (?<folder>/[\\w./-]+)'

export function taskIn(folder: string): string {
  return `Work in the folder ${folder} : write hello.sh, run it, and read what it printed.`
}

/**
 * How the model writes. An agent's client trims and rewrites an `untidy` completion before it echoes it; in token mode
 * this must not cost a token.
 */
export type Hand = 'tidy' | 'untidy'

/**
 * Returns a playbook: the first step responds to the task, each other one to the results of the step before it. A
 * request that offers other tools, or none, is not part of the script and gets any completion.
 * @param task a regular expression on the text of the last user message
 */
export function getPlaybook(steps: readonly Step[], hand: Hand, task = FOLDER_OF_TASK): { rules: object[] } {
  const tool = steps[0]?.calls?.[0]?.tool
  const rules = steps.map((step, index) => ({
    name: `step ${index}`,
    when: {
      role: index === 0 ? 'user' : 'tool',
      step: index,
      user: task,
      ...(tool !== undefined && { tool }),
    },
    answer: hand === 'tidy' ? tidy(step) : untidy(step),
  }))
  return { rules }
}

/** Writes a step as the chat template would. */
function tidy({ thinks, says, calls }: Step): object {
  return {
    ...(thinks !== undefined && { reasoning: thinks }),
    ...(says !== undefined && { content: says }),
    ...(calls && { tool_calls: calls.map((call) => ({ name: call.tool, arguments: call.arguments })) }),
  }
}

/**
 * Writes a step with white space around everything, and tool calls with their keys in another order and irregular
 * spacing.
 */
function untidy({ thinks, says, calls = [] }: Step): object {
  const written = calls.map((call) => {
    const json = `{ "arguments":${JSON.stringify(call.arguments)},  "name" : "${call.tool}" }`
    return `<tool_call>\n${json}\n</tool_call>`
  })
  const spoken = [...(says === undefined ? [] : [` ${says} \n`]), ...written].join('\n')
  return { content: thinks === undefined ? spoken : `<think>\n ${thinks} \n</think>\n\n${spoken}` }
}
