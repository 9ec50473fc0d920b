import t from 'tap'
import { findNearest, formatSuggestion } from '../../../../src/proxy/config/nearest.ts'

const NAMES = ['port', 'host', 'engine-url', 'engine-kind', 'db']

t.test('a misspelt name is matched to the intended one', async (t) => {
  t.equal(findNearest('prot', NAMES), 'port', 'two letters swapped')
  t.equal(findNearest('engine-urls', NAMES), 'engine-url', 'one letter too many')
  t.equal(findNearest('hst', NAMES), 'host', 'one letter too few')
  t.equal(findNearest('ENGINE-KINT', NAMES), 'engine-kind', 'another letter, another case')
})

t.test('a name that resembles no other has no match', async (t) => {
  t.equal(findNearest('verbose', NAMES), undefined)
  t.equal(findNearest('', NAMES), undefined)
  t.equal(formatSuggestion('verbose', NAMES), '')
})

t.test('the suggestion is formatted as a question', async (t) => {
  t.equal(formatSuggestion('prot', NAMES), ' (did you mean port?)')
})
