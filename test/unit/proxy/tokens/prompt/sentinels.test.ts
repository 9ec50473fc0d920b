/**
 * Detection of changes in a history that a template renders again with further messages: a row continues only
 * an unchanged history.
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
const HISTORY = `<user>${question}</user><bot><think>${thought}</think>${completion}</bot>`

const HISTORIES: Record<string, [after: string, isSame: boolean]> = {
  'without a change': [HISTORY, true],
  'without its reasoning': [`<user>${question}</user><bot>${completion}</bot>`, true],
  'without its reasoning, whose markup stays': [
    `<user>${question}</user><bot><think></think>${completion}</bot>`,
    true,
  ],
  'without a completion': [`<user>${question}</user><bot><think>${thought}</think></bot>`, false],
  'with something new': [
    `<date><user>${question}</user><bot><think>${thought}</think>${completion}</bot>`,
    false,
  ],
  'with other markup': [`<user>${question}</user><bot><Think>${thought}</Think>${completion}</bot>`, false],
  'in another order': [`<bot><think>${thought}</think>${completion}</bot><user>${question}</user>`, false],
  'with a completion twice': [`${HISTORY}<bot>${completion}</bot>`, false],
  'with reasoning elsewhere': [
    `<user>${question}</user><bot>${completion}<think>${thought}</think></bot>`,
    false,
  ],
}

for (const [name, [after, isSame]] of Object.entries(HISTORIES))
  t.test(`a history ${name}`, async (t) => t.equal(isSameHistory(HISTORY, after), isSame))

t.test('two parts removed at one position are more than reasoning with its markup', async (t) => {
  t.equal(isSameHistory(`a1b2c${question}`, `abc${question}`), false)
  t.equal(isSameHistory(`a12bc${question}`, `abc${question}`), true)
})

t.test(
  'a history without sentinels may lose any text, but only white space may be added or moved',
  async (t) => {
    for (const [after, isAccepted] of [
      ['abcd', true],
      ['ad', true],
      ['', true],
      ['abcde', false],
      ['ba', false],
      ['abxd', false],
      ['a\n\nd ', true],
      ['b \na', false],
    ] as const)
      t.equal(hasOnlyRemovals('abcd', after), isAccepted, after)
  },
)

t.test('sentinels are found by their start and end', async (t) => {
  t.equal(getTextBeforeSentinel(HISTORY), '<user>')
  t.equal(getTextBeforeSentinel('none'), 'none')
  t.equal(findSentinelsEnd(HISTORY, [question, completion]), HISTORY.length - '</bot>'.length)
  t.equal(findSentinelsEnd(HISTORY, [createSentinel('message', 7)]), undefined)
  t.equal(findSentinelsEnd(`${question}.`, [question, completion]), question.length)
})
