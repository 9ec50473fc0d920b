/** Validates the requests of trainers and operators against their schemas. */
import type { FastifySchemaCompiler } from 'fastify'
import type { TSchema } from 'typebox'
import { Value } from 'typebox/value'
import { compileLazily } from '../../../base/compile-lazily.ts'
import { ProxyError } from '../../../base/errors.ts'
import { listSchemaErrors, type SchemaError } from '../../../protocol/schema/schema-errors.ts'

/**
 * Compiles the validator of a schema. It fills in defaults, and converts numbers and booleans of a query from text; a
 * body is not converted, so `"1.0"` is not a valid reward. An absent body counts as an empty object. A validator fails
 * with a ProxyError `invalid_request` that names the field.
 */
export const validatorCompiler: FastifySchemaCompiler<TSchema> = ({ schema, httpPart }) => {
  const compiled = compileLazily(schema)
  return (value: unknown) => {
    const read = httpPart === 'querystring' ? readQuery(schema, value) : (value ?? {})
    const filled = Value.Default(schema, read)
    if (compiled().Check(filled)) return { value: filled }
    return { error: describe(listSchemaErrors(schema, compiled(), filled)) }
  }
}

/** Matches a number of JSON, including the exponent with which most languages write a large number: `1e21`. */
const NUMBER = /^-?\d+(\.\d+)?([eE][+-]?\d+)?$/

function readQuery(schema: TSchema, query: unknown): Record<string, unknown> {
  const properties = (schema as { properties?: Record<string, { type?: string }> }).properties ?? {}
  return Object.fromEntries(
    Object.entries(query as object).map(([name, text]) => [name, readText(properties[name]?.type, text)]),
  )
}

function readText(type: string | undefined, text: unknown): unknown {
  if (typeof text !== 'string') return text
  if ((type === 'number' || type === 'integer') && NUMBER.test(text)) return Number(text)
  if (type === 'boolean' && (text === 'true' || text === 'false')) return text === 'true'
  return text
}

/** Describes the first error, but prefers an unknown field: for a misspelt name, `required` would mislead. */
function describe(errors: SchemaError[]): ProxyError {
  const unknown = errors.find(({ keyword }) => keyword === 'additionalProperties')
  const error = unknown ?? errors[0]!
  const param = [...error.instancePath.split('/').slice(1), ...getFieldNames(error)].join('.')
  const message =
    param === '' ? `The request ${describeReason(error)}` : `'${param}' ${describeReason(error)}`
  return new ProxyError('invalid_request', message, param === '' ? {} : { param })
}

function getFieldNames({ keyword, params }: SchemaError): string[] {
  const names = { required: params.requiredProperties, additionalProperties: params.additionalProperties }
  const [first] = (names[keyword as keyof typeof names] as string[] | undefined) ?? []
  return first === undefined ? [] : [first]
}

/** Matches a pattern that lists alternatives, some with a variable part: `^(all|policy:.+)$`. */
const CHOICES = /^\^\((.*)\)\$$/

function describeReason({ keyword, params, message }: SchemaError): string {
  if (keyword === 'required') return 'is required'
  if (keyword === 'additionalProperties') return 'is not a field of this request'
  if (keyword === 'minProperties') return 'must not be empty'
  if (keyword === 'enum') return `must be one of ${(params.allowedValues as unknown[]).join(', ')}`
  const choices = keyword === 'pattern' && CHOICES.exec(params.pattern as string)?.[1]
  if (choices) return `must be one of ${choices.replaceAll('|', ', ').replaceAll('.+', '…')}`
  return message
}
