/**
 * The model's completions for each framework. They are untidy: white space around words, and irregularly spaced JSON.
 */

interface Rule {
  name: string
  /** Conditions of the playbook. */
  when: { text?: string; tool?: string }
  answer: { content: string }
}

const rule = (name: string, when: Rule['when'], content: string): Rule => ({
  name,
  when,
  answer: { content },
})

const call = (a: number, b: number) =>
  `<tool_call>\n{ "arguments":{"a":${a},"b": ${b}},  "name" : "add" }\n</tool_call>`
const FIRST = `<think>\n First the sum. \n</think>\n\n I add. \n${call(2, 3)}`
const SECOND = `<think>\n Then four. \n</think>\n\n${call(5, 4)}`
const LAST = ' It is 9. \n'

/** Rules by the tool's result, because some frameworks send it in a user message. */
const withTools = (last: string): Rule[] => [
  rule('last', { text: '\\b9\\b', tool: 'add' }, last),
  rule('second', { text: '\\b5\\b', tool: 'add' }, SECOND),
  rule('first', { tool: 'add' }, FIRST),
]

/** Fields of DSPy's own format, which DSPy uses in place of tool calls. */
const fields = (...pairs: [name: string, value: string][]) =>
  [...pairs, ['completed', '']].map(([name, value]) => `[[ ## ${name} ## ]]\n ${value} \n`).join('\n')
const step = (thought: string, tool: string, args: string) =>
  fields(['next_thought', thought], ['next_tool_name', tool], ['next_tool_args', args])

/** A complete file, in aider's `whole` format. */
const file = (words: string, content: string) => ` ${words} \n\nsum.txt\n\`\`\`\n${content}\n\`\`\`\n`

/** Rules for frameworks that do not offer tools by the API, or that end differently. */
const OWN: Record<string, Rule[]> = {
  // smolagents ends with a tool call, too.
  smolagents: withTools('<tool_call>\n{"name": "final_answer", "arguments": {"answer": "9"}}\n</tool_call>'),
  dspy: [
    rule(
      'answer',
      { text: 'starting with the field `\\[\\[ ## reasoning' },
      fields(['reasoning', 'Sums.'], ['answer', '9']),
    ),
    rule('finish', { text: 'observation_1' }, step('That is all.', 'finish', '{ }')),
    rule('second', { text: 'observation_0' }, step('Then four.', 'add', '{"a":5,"b": 4}')),
    rule('first', {}, step('First the sum.', 'add', '{"a":2,"b": 3}')),
  ],
  aider: [
    rule('last', { text: 'What does it say' }, LAST),
    rule('second', { text: 'Add 4' }, file('Then four.', '9')),
    rule('first', {}, `<think>\n First the sum. \n</think>\n\n${file('The sum.', '5')}`),
  ],
}

/** The file that `--playbook` takes. */
export function playbookFor(name: string): { rules: Rule[] } {
  return { rules: OWN[name] ?? withTools(LAST) }
}
