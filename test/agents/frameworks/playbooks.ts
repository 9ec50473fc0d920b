/**
 * The model's completions for each framework, untidy: with white space around text, and irregularly spaced JSON.
 */

interface Rule {
  name: string
  /** Conditions of the playbook. */
  when: { text?: string; tool?: string }
  answer: { content: string }
}

const createRule = (name: string, when: Rule['when'], content: string): Rule => ({
  name,
  when,
  answer: { content },
})

const formatToolCall = (a: number, b: number) =>
  `<tool_call>\n{ "arguments":{"a":${a},"b": ${b}},  "name" : "add" }\n</tool_call>`
const FIRST = `<think>\n First the sum. \n</think>\n\n I add. \n${formatToolCall(2, 3)}`
const SECOND = `<think>\n Then four. \n</think>\n\n${formatToolCall(5, 4)}`
const LAST = ' It is 9. \n'

/** Returns rules that match the tool's result, which some frameworks send in a user message. */
const createToolRules = (last: string): Rule[] => [
  createRule('last', { text: '\\b9\\b', tool: 'add' }, last),
  createRule('second', { text: '\\b5\\b', tool: 'add' }, SECOND),
  createRule('first', { tool: 'add' }, FIRST),
]

/** Returns fields in DSPy's own format, which DSPy uses in place of tool calls. */
const formatFields = (...pairs: [name: string, value: string][]) =>
  [...pairs, ['completed', '']].map(([name, value]) => `[[ ## ${name} ## ]]\n ${value} \n`).join('\n')
const formatStep = (thought: string, tool: string, args: string) =>
  formatFields(['next_thought', thought], ['next_tool_name', tool], ['next_tool_args', args])

/** Returns a complete file in aider's `whole` format. */
const formatFile = (text: string, content: string) => ` ${text} \n\nsum.txt\n\`\`\`\n${content}\n\`\`\`\n`

/** Rules for frameworks that do not offer tools by the API, or that end differently. */
const OWN: Record<string, Rule[]> = {
  // smolagents ends with a tool call, too.
  smolagents: createToolRules(
    '<tool_call>\n{"name": "final_answer", "arguments": {"answer": "9"}}\n</tool_call>',
  ),
  dspy: [
    createRule(
      'answer',
      { text: 'starting with the field `\\[\\[ ## reasoning' },
      formatFields(['reasoning', 'Sums.'], ['answer', '9']),
    ),
    createRule('finish', { text: 'observation_1' }, formatStep('That is all.', 'finish', '{ }')),
    createRule('second', { text: 'observation_0' }, formatStep('Then four.', 'add', '{"a":5,"b": 4}')),
    createRule('first', {}, formatStep('First the sum.', 'add', '{"a":2,"b": 3}')),
  ],
  aider: [
    createRule('last', { text: 'What does it say' }, LAST),
    createRule('second', { text: 'Add 4' }, formatFile('Then four.', '9')),
    createRule('first', {}, `<think>\n First the sum. \n</think>\n\n${formatFile('The sum.', '5')}`),
  ],
}

/** Returns the content of the file for `--playbook`. */
export function getPlaybook(name: string): { rules: Rule[] } {
  return { rules: OWN[name] ?? createToolRules(LAST) }
}
