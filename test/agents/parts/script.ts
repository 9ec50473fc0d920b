/** The model's completions for an agent, step by step, as a playbook of the embedded engine. */

export interface ScriptedToolCall {
  tool: string
  arguments: Record<string, unknown>
}

/** One completion of the model; the playbook replaces `$<folder>` by the folder that the task names. */
export interface Step {
  reasoning?: string
  content?: string
  toolCalls?: readonly ScriptedToolCall[]
}

/** The pattern by which a playbook finds the rollout's folder in a task. */
export const FOLDER_PATTERN = 'in the folder (?<folder>/[\\w./-]+)'

export function createTask(folder: string): string {
  return `Work in the folder ${folder} : write hello.sh, run it, and read what it printed.`
}

/**
 * The format of a completion. An agent's client trims and rewrites an `untidy` completion before it echoes it; in token
 * mode this must not change a token.
 */
export type CompletionStyle = 'tidy' | 'untidy'

/**
 * Creates a playbook: the first step responds to the task, each other step to the results of the previous one. A
 * request that offers other tools, or none, is not part of the script and gets any completion.
 * @param task a regular expression on the text of the last user message
 */
export function createPlaybook(
  steps: readonly Step[],
  style: CompletionStyle,
  task = FOLDER_PATTERN,
): { rules: object[] } {
  const tool = steps[0]?.toolCalls?.[0]?.tool
  const rules = steps.map((step, index) => ({
    name: `step ${index}`,
    when: {
      role: index === 0 ? 'user' : 'tool',
      step: index,
      user: task,
      ...(tool !== undefined && { tool }),
    },
    answer: style === 'tidy' ? writeTidily(step) : writeUntidily(step),
  }))
  return { rules }
}

/** Returns a step in the format of the chat template. */
function writeTidily({ reasoning, content, toolCalls }: Step): object {
  return {
    ...(reasoning !== undefined && { reasoning }),
    ...(content !== undefined && { content }),
    ...(toolCalls && {
      tool_calls: toolCalls.map((call) => ({ name: call.tool, arguments: call.arguments })),
    }),
  }
}

/**
 * Returns a step with white space around each part, and tool calls with their keys in another order and irregular
 * spacing.
 */
function writeUntidily({ reasoning, content, toolCalls = [] }: Step): object {
  const calls = toolCalls.map((call) => {
    const json = `{ "arguments":${JSON.stringify(call.arguments)},  "name" : "${call.tool}" }`
    return `<tool_call>\n${json}\n</tool_call>`
  })
  const text = [...(content === undefined ? [] : [` ${content} \n`]), ...calls].join('\n')
  return { content: reasoning === undefined ? text : `<think>\n ${reasoning} \n</think>\n\n${text}` }
}
