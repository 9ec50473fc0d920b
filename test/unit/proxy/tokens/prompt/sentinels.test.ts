/**
 * Whether a history that a template renders again, with further messages, is unchanged: rows continue it or
 * start again.
 */
import t from 'tap'
import {
  createSentinel,
  findSentinelsEnd,
  getTextBeforeSentinel,
  hasOnlyRemovals,
  isSameHistory,
} from '../../../../../src/proxy/tokens/prompt/sentinels.ts'

const [question, completion, thought] = [
  createSentinel('message', 0),
  createSentinel('message', 1),
  createSentinel('reasoning', 1),
]
const PAST = `<user>${question}</user><bot><think>${thought}</think>${completion}</bot>`

const PASTS: Record<string, [after: string, isSame: boolean]> = {
  'as it was': [PAST, true],
  'without its reasoning': [`<user>${question}</user><bot>${completion}</bot>`, true],
  'without its reasoning, whose markup stays': [
    `<user>${question}</user><bot><think></think>${completion}</bot>`,
    true,
  ],
  'without an answer': [`<user>${question}</user><bot><think>${thought}</think></bot>`, false],
  'with something new': [
    `<date><user>${question}</user><bot><think>${thought}</think>${completion}</bot>`,
    false,
  ],
  'with other markup': [`<user>${question}</user><bot><Think>${thought}</Think>${completion}</bot>`, false],
  'in another order': [`<bot><think>${thought}</think>${completion}</bot><user>${question}</user>`, false],
  'with a completion twice': [`${PAST}<bot>${completion}</bot>`, false],
  'with reasoning elsewhere': [
    `<user>${question}</user><bot>${completion}<think>${thought}</think></bot>`,
    false,
  ],
}

for (const [name, [after, isSame]] of Object.entries(PASTS))
  t.test(`a history ${name}`, async (t) => t.equal(isSameHistory(PAST, after), isSame))

t.test('two parts cut out at one place are more than reasoning with its markup', async (t) => {
  t.equal(isSameHistory(`a1b2c${question}`, `abc${question}`), false)
  t.equal(isSameHistory(`a12bc${question}`, `abc${question}`), true)
})

t.test(
  'a history without sentinels may lose any text, but only white space may be added or moved',
  async (t) => {
    for (const [after, isKept] of [
      ['abcd', true],
      ['ad', true],
      ['', true],
      ['abcde', false],
      ['ba', false],
      ['abxd', false],
      ['a\n\nd ', true],
      ['b \na', false],
    ] as const)
      t.equal(hasOnlyRemovals('abcd', after), isKept, after)
  },
)

t.test('sentinels are found by their start and end', async (t) => {
  t.equal(getTextBeforeSentinel(PAST), '<user>')
  t.equal(getTextBeforeSentinel('none'), 'none')
  t.equal(findSentinelsEnd(PAST, [question, completion]), PAST.length - '</bot>'.length)
  t.equal(findSentinelsEnd(PAST, [createSentinel('message', 7)]), undefined)
  t.equal(findSentinelsEnd(`${question}.`, [question, completion]), question.length)
})
