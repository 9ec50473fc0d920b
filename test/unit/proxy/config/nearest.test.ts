import t from 'tap'
import { didYouMean, nearest } from '../../../../src/proxy/config/nearest.ts'

const NAMES = ['port', 'host', 'engine-url', 'engine-kind', 'db']

t.test('a slip of the finger finds the name that was meant', async (t) => {
  t.equal(nearest('prot', NAMES), 'port', 'two letters swapped')
  t.equal(nearest('engine-urls', NAMES), 'engine-url', 'one letter too many')
  t.equal(nearest('hst', NAMES), 'host', 'one letter too few')
  t.equal(nearest('ENGINE-KINT', NAMES), 'engine-kind', 'another letter, another case')
})

t.test('a name that resembles none finds none', async (t) => {
  t.equal(nearest('verbose', NAMES), undefined)
  t.equal(nearest('', NAMES), undefined)
  t.equal(didYouMean('verbose', NAMES), '')
})

t.test('the suggestion reads as a question', async (t) => {
  t.equal(didYouMean('prot', NAMES), ' (did you mean port?)')
})
