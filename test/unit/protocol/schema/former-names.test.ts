import t from 'tap'
import Type from 'typebox'
import { nullable } from '../../../../src/protocol/schema/field.ts'
import {
  FORMER_NAMES,
  isDeprecated,
  readFormerNames,
  withFormerNames,
  withFormerProperties,
} from '../../../../src/protocol/schema/former-names.ts'

t.test('a response has both names of a value, with the current one first', (t) => {
  const values = withFormerNames({ index: 0, agent_role: 'main', agent_role_rule: 'first' })
  t.equal(
    JSON.stringify(values),
    '{"index":0,"agent_role":"main","line":"main","agent_role_rule":"first","line_rule":"first"}',
  )
  t.equal(new Set([...Object.keys(FORMER_NAMES), ...Object.values(FORMER_NAMES)]).size, 14)
  t.end()
})

t.test('a former name is optional and deprecated in a schema, and names its successor', (t) => {
  const { agent_role: present, line: former } = withFormerProperties({
    agent_role: Type.String({ description: 'The role' }),
  })
  t.same([isDeprecated(present), isDeprecated(former)], [false, true])
  t.ok(Type.IsOptional(former) && Type.IsString(former))
  t.same(present, { type: 'string', description: 'The role' })
  t.match(former, { deprecated: true, description: 'Deprecated: the former name of `agent_role`' })
  t.end()
})

t.test('a response of an earlier release is read where its schema has the names', (t) => {
  const Turn = Type.Object(withFormerProperties({ agent_role: Type.String() }))
  const schema = Type.Object({
    ...withFormerProperties({ reward_agent_roles: Type.Record(Type.String(), Type.Number()) }),
    metadata: Type.Record(Type.String(), Type.Unknown()),
    turns: Type.Array(nullable(Turn)),
  })
  const response = {
    reward_lines: { main: 1 },
    metadata: { line: 'of the trainer' },
    turns: [{ line: 'main' }, null, { line: 'former', agent_role: 'present' }],
  }
  readFormerNames(schema, response)
  t.same(response, {
    reward_lines: { main: 1 },
    reward_agent_roles: { main: 1 },
    metadata: { line: 'of the trainer' },
    turns: [{ line: 'main', agent_role: 'main' }, null, { line: 'former', agent_role: 'present' }],
  })
  for (const other of [undefined, null, 'text', [1]]) t.doesNotThrow(() => readFormerNames(schema, other))
  t.end()
})
