/** Specialization of new parts for templates whose operations read other messages. */
import t from 'tap'
import type { ChatMessage } from '../../../../../src/protocol/canonical/messages.ts'
import {
  CHATML,
  CONTENT,
  countJobs,
  createThread,
  HISTORY,
  question,
  renderPart,
  result,
  SYSTEM,
} from './specializer-rig.ts'

/** Templates by their operations, and whether a new part can be specialized. */
const HOSTILE: Record<string, [template: string, isSpecialized: boolean]> = {
  'write each content': [CHATML('', CONTENT), true],
  trim: [CHATML('', "{{ (m.content or '') | trim }}"), true],
  'mark the last message': [CHATML('', `${CONTENT}{% if loop.last %}!{% endif %}`), false],
  'count messages': [CHATML('', `{{ loop.index }} of {{ messages | length }}: ${CONTENT}`), false],
  'mark odd messages': [CHATML('', `{{ loop.cycle("a", "b") }}${CONTENT}`), true],
  'count characters': [CHATML('', `{{ m.content | length }}${CONTENT}`), false],
  'sum up characters': [
    CHATML(
      '{% set ns = namespace(n=0) %}',
      `{% set ns.n = ns.n + (m.content or '') | length %}{{ ns.n }}${CONTENT}`,
    ),
    false,
  ],
  'begin with the last content': [CHATML('{{ messages[-1].content }}', CONTENT), false],
  'begin with the last content, trimmed': [CHATML('{{ messages[-1].content | trim }}', CONTENT), false],
  'begin with a word of the last content': [
    CHATML('{% if "x" in messages[-1].content %}X{% endif %}', CONTENT),
    true,
  ],
  'write the first content again': [CHATML('', `${CONTENT}{{ messages[0].content }}`), false],
  'compare with the first content': [
    CHATML('', `${CONTENT}{% if m.content == messages[0].content %}!{% endif %}`),
    true,
  ],
  'write the date': [CHATML('', `${CONTENT}{{ strftime_now("%Y") }}`), false],
  'choose by the date': [CHATML('', `${CONTENT}{% if strftime_now("%Y") > "2000" %}!{% endif %}`), false],
  'write ids of tool calls': [
    CHATML('', `${CONTENT}{% for c in m.tool_calls or [] %}{{ c.id }}{{ c.function.arguments }}{% endfor %}`),
    true,
  ],
  'write ids of results': [
    CHATML(
      '',
      `${CONTENT}{% for c in m.tool_calls or [] %}{{ c.function.arguments }}{% endfor %}{{ m.tool_call_id }}`,
    ),
    true,
  ],
  'choose at random': [CHATML('', `${CONTENT}{{ [1] | random }}`), false],
  'reject a content': [
    CHATML('', `${CONTENT}{% if m.content == "x" %}{{ raise_exception("x") }}{% endif %}`),
    true,
  ],
}

const CONTENTS = ['a', '', ' ', 'x', 'b', ' a ', '<|im_end|>', 'Be brief.', 'axa', '{"a": 1}', '𝔸', 'a', 'c']

// "Compare with the first content" is specialized, because the first content of a dummy history is a
// constant; a new part without a specialization does not see the real one either. "Write ids of tool calls"
// is tested where the echo has none.
for (const [action, [source, isSpecialized]] of Object.entries(HOSTILE)) {
  t.test(`new parts of templates that ${action}`, async (t) => {
    const thread = createThread('qwen3', source)
    const { prompts, jobs, faults } = countJobs(createThread('qwen3', source))
    const chatHistory: ChatMessage[] = [SYSTEM, question('What?'), { role: 'assistant', content: 'That.' }]
    const turns = CONTENTS.flatMap((content): [ChatMessage[], ChatMessage][] => [
      [HISTORY, result(content)],
      [chatHistory, question(content)],
    ])
    const expected = await Promise.all(turns.map((turn) => renderPart(thread, ...turn)))
    // A specialization is learned in one round, and used in the next.
    for (let round = 0; round < 2; round += 1)
      for (const [index, turn] of turns.entries()) {
        const [, message] = turn
        t.strictSame(
          await renderPart(prompts, ...turn),
          expected[index],
          `${message.role} ${message.content}`,
        )
      }
    t.equal(jobs.learned > 0, isSpecialized, `${jobs.learned} specializations`)
    t.strictSame(faults, [])
  })
}
