/** What the model says to an agent, step by step, as a playbook of the embedded engine. */

export interface ScriptedCall {
  tool: string
  arguments: Record<string, unknown>
}

/** One answer of the model; `$<folder>` stands for the folder that the task names. */
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
 * How the model writes. An agent's client trims and rewrites what is `untidy` before it echoes it; in token mode none
 * of that may cost a token.
 */
export type Hand = 'tidy' | 'untidy'

/**
 * The first step answers the task, each other one the results of the step before it. A call that offers other tools,
 * or none, is not of this script: the model answers as it likes.
 * @param task a regular expression on the text of the last user message
 */
export function playbookOf(steps: readonly Step[], hand: Hand, task = FOLDER_OF_TASK): { rules: object[] } {
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

/** As the chat template would write it. */
function tidy({ thinks, says, calls }: Step): object {
  return {
    ...(thinks !== undefined && { reasoning: thinks }),
    ...(says !== undefined && { content: says }),
    ...(calls && { tool_calls: calls.map((call) => ({ name: call.tool, arguments: call.arguments })) }),
  }
}

/** The same with white space around all of it, and calls with their keys in another order and spaced in another way. */
function untidy({ thinks, says, calls = [] }: Step): object {
  const written = calls.map((call) => {
    const json = `{ "arguments":${JSON.stringify(call.arguments)},  "name" : "${call.tool}" }`
    return `<tool_call>\n${json}\n</tool_call>`
  })
  const spoken = [...(says === undefined ? [] : [` ${says} \n`]), ...written].join('\n')
  return { content: thinks === undefined ? spoken : `<think>\n ${thinks} \n</think>\n\n${spoken}` }
}
