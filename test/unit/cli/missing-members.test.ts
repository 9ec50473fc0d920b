import t from 'tap'
import Type from 'typebox'
import { addMissingMembers } from '../../../src/cli/missing-members.ts'

const Turn = Type.Object({
  index: Type.Integer(),
  note: Type.Union([Type.String(), Type.Null()]),
  kinds: Type.Array(Type.String()),
  extra: Type.Optional(Type.Union([Type.String(), Type.Null()])),
})

t.test('nullable members and lists are added, others are not', async (t) => {
  const value = { turns: [{}, { index: 1, note: 'n', kinds: ['a'] }] }
  addMissingMembers(Type.Object({ turns: Type.Array(Turn) }), value)
  t.strictSame(value.turns, [
    { note: null, kinds: [] },
    { index: 1, note: 'n', kinds: ['a'] },
  ])
})

t.test('of several types, only the one that the value has', async (t) => {
  const schema = Type.Union([Turn, Type.Object({ status: Type.Literal('not_found') })])
  const missing = { status: 'not_found' }
  const turn = { index: 0 }
  addMissingMembers(schema, missing)
  addMissingMembers(schema, turn)
  t.strictSame(missing, { status: 'not_found' })
  t.strictSame(turn, { index: 0, note: null, kinds: [] } as object)
})
