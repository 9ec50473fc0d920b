/**
 * Structural tags for GLM's tool calls, whose values are text or JSON between tags. Sources: vLLM's
 * `tool_parsers/structural_tag_registry.py` (0.32), and xgrammar's `builtin_structural_tag.py` (0.2.8) for tools that
 * are all strict.
 */
import { isRecord } from '../../../../base/json.ts'
import {
  anyText,
  constant,
  either,
  type Format,
  jsonSchema,
  sequence,
  tag,
  tagList,
  triggeredTags,
} from './structural-tag.ts'
import type { ToolCallFormat } from './tool-call-formats.ts'
import type { FunctionTool, Schema } from './tool-call-request.ts'

const OPEN = '<tool_call>'
const MARKUP = [
  '<think>',
  '</think>',
  OPEN,
  '</tool_call>',
  '<arg_key>',
  '</arg_key>',
  '<arg_value>',
  '</arg_value>',
]

const TEXT_EXCLUDES = MARKUP.filter((marker) => marker !== OPEN)

/** For tools that are not strict, only the keys and simple types of their schema are enforced. */
export const glm: ToolCallFormat = ({ tools, choice, onlyOne }) => {
  const isForced = choice === 'forced'
  const tags = tools.map(callTag)
  const allStrict = tools.every(({ strict }) => strict)
  if (allStrict && isForced) return tags[0]!
  if (!allStrict && choice !== 'auto') return tagList(tags, onlyOne || isForced)
  return triggeredTags(OPEN, tags, { onlyOne, atLeastOne: choice === 'required', excludes: TEXT_EXCLUDES })
}

function callTag({ name, strict, parameters }: FunctionTool): Format {
  const properties = strict ? undefined : plainProperties(parameters ?? {})
  const schema = strict ? (parameters ?? true) : true
  const content =
    properties === undefined ? jsonSchema(schema, 'glm_xml') : anyProperty(Object.entries(properties))
  return tag(OPEN + name, content, '</tool_call>')
}

/** Returns the properties of a schema; undefined if the schema specifies more than its keys. */
function plainProperties(schema: Schema): Schema | undefined {
  const { properties } = schema
  const isPlain = typeof properties === 'object' && properties !== null && Object.keys(properties).length > 0
  const says = ['$ref', 'allOf', 'anyOf', 'oneOf', 'patternProperties'].some((key) => key in schema)
  return isPlain && !says && schema.additionalProperties !== true ? (properties as Schema) : undefined
}

function anyProperty(properties: readonly (readonly [string, unknown])[]): Format {
  const pairs = properties.map(([key, property]) =>
    sequence(
      constant(`<arg_key>${key}</arg_key><arg_value>`),
      valueFormat(isRecord(property) ? property : {}),
      constant('</arg_value>'),
    ),
  )
  return { type: 'star', content: oneFormat(pairs) }
}

function valueFormat(property: Schema): Format {
  if (Array.isArray(property.enum)) {
    return oneFormat(
      property.enum.map((value) => constant(typeof value === 'string' ? value : JSON.stringify(value))),
    )
  }
  const { type } = property
  if (Array.isArray(type)) {
    const others = type.filter((one) => one !== 'string').map((one) => valueFormat({ type: one }))
    return oneFormat(type.includes('string') ? [...others, anyText(MARKUP)] : others)
  }
  if (type === undefined || type === null || type === 'string') return anyText(MARKUP)
  return jsonSchema({ type })
}

function oneFormat(formats: readonly Format[]): Format {
  return formats.length === 1 ? formats[0]! : either(formats)
}
