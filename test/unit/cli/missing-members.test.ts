import t from 'tap'
import Type from 'typebox'
import { Value } from 'typebox/value'
import { addMissingMembers, toClientSchema } from '../../../src/cli/missing-members.ts'
import { SINCE } from '../../../src/protocol/schema/field.ts'

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

t.test('members of later releases are optional for a client, others are not', async (t) => {
  const Session = Type.Object({ id: Type.String(), tries: Type.Integer({ [SINCE]: '0.2.0' }) })
  const schema = toClientSchema(Type.Object({ sessions: Type.Array(Type.Union([Session, Type.Null()])) }))
  t.ok(Value.Check(schema, { sessions: [{ id: 's' }, { id: 's', tries: 1 }, null] }))
  t.notOk(Value.Check(schema, { sessions: [{ tries: 1 }] }))
  t.notOk(Value.Check(schema, { sessions: [{ id: 's', tries: 'one' }] }))
})
