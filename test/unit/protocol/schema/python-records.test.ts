import { readFileSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import t from 'tap'
import Type, { type TSchema } from 'typebox'
import { type FieldTable, nullable } from '../../../../src/protocol/schema/field.ts'
import { FORMER_NAMES } from '../../../../src/protocol/schema/former-names.ts'
import { engineRequestFields, rowFields, rowTurnFields } from '../../../../src/protocol/schema/row.ts'

const FILE = join(import.meta.dirname, '../../../../python/src/llm_proxy/records.py')
const LINE_LENGTH = 110

t.test('the Python classes have the fields of a row (UPDATE=1 generates them)', (t) => {
  const { turns, ...ownFields } = rowFields
  const generated = `"""The fields of rows, generated from src/protocol/schema/row.ts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

#: The names that proxies of 0.1.0 use.
FORMER_NAMES = ${toDict(FORMER_NAMES)}


${toClass('EngineRequest', 'An engine request of a response that continued after its engine request was cut.', engineRequestFields)}

${toClass('TurnFields', 'The span of a turn in a row.', rowTurnFields)}

${toClass('RowFields', 'The fields of a row, without its turns.', ownFields)}`
  if (process.env.UPDATE) writeFileSync(FILE, generated)
  t.equal(readFileSync(FILE, 'utf8'), generated)
  t.end()
})

/** Returns a dictionary, in the format of ruff. */
function toDict(values: Readonly<Record<string, string>>): string {
  const members = Object.entries(values).map(([name, value]) => `    "${name}": "${value}",\n`)
  return `{\n${members.join('')}}`
}

/** Returns the class of a record; fields that a response may lack are not in it. */
function toClass(name: string, about: string, fields: FieldTable): string {
  const members = Object.entries(fields).flatMap(([field, { type, since }]) => {
    if (Type.IsOptional(type)) return []
    const annotation = since === undefined ? toAnnotation(type) : `${toAnnotation(nullable(type))} = None`
    return [...toComment(type), `    ${field}: ${annotation}`]
  })
  return `@dataclass(frozen=True, kw_only=True)
class ${name}:
    """${about}"""

${members.join('\n')}
`
}

function toAnnotation(type: TSchema): string {
  if (Type.IsUnion(type)) return [...new Set(type.anyOf.map(toAnnotation))].join(' | ')
  if (Type.IsNull(type)) return 'None'
  if (Type.IsArray(type)) {
    const of = toAnnotation(type.items)
    return of === 'str' ? 'Sequence[str]' : `list[${of}]`
  }
  if (Type.IsRecord(type)) return 'Mapping[str, float]'
  if (Type.IsInteger(type)) return 'int'
  if (Type.IsNumber(type)) return 'float'
  if (Type.IsBoolean(type)) return 'bool'
  if (Type.IsString(type)) return 'str'
  throw new Error(`no Python type for ${JSON.stringify(type)}`)
}

/** Returns the description as lines of a comment. */
function toComment(type: TSchema): string[] {
  const { description } = (Type.IsUnion(type) ? type.anyOf[0] : type) as { description?: string }
  if (description === undefined) return []
  const lines = ['    #:']
  for (const word of description.replaceAll('`', '``').replaceAll('null', '``None``').split(' ')) {
    if (`${lines.at(-1)} ${word}`.length > LINE_LENGTH) lines.push('    #:')
    lines.push(`${lines.pop()} ${word}`)
  }
  return lines
}
