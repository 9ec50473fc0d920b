/**
 * Structural tags for GLM's tool calls, whose values are text or JSON between tags. Sources: vLLM's
 * `tool_parsers/structural_tag_registry.py` (0.32), and xgrammar's `builtin_structural_tag.py` (0.2.8) for tools that
 * are all strict.
 */
import { isRecord } from '../../../../base/json.ts'
import {
  createAnyTextFormat,
  createConstantFormat,
  createEitherFormat,
  createJsonSchemaFormat,
  createSequenceFormat,
  createTag,
  createTagList,
  createTriggeredTags,
  type StructuralTagFormat,
} from './structural-tag.ts'
import type { ToolCallFormat } from './tool-call-formats.ts'
import type { FunctionTool, JsonSchema } from './tool-call-request.ts'

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

/**
 * The format of GLM. For tools that are not strict, only the keys, the simple types and the `enum` values of their
 * schema are enforced.
 */
export const glm: ToolCallFormat = ({ tools, choice, onlyOne }) => {
  const isForced = choice === 'forced'
  const tags = tools.map(buildCallTag)
  const allStrict = tools.every(({ strict }) => strict)
  if (allStrict && isForced) return tags[0]!
  if (!allStrict && choice !== 'auto') return createTagList(tags, onlyOne || isForced)
  return createTriggeredTags(OPEN, tags, {
    onlyOne,
    atLeastOne: choice === 'required',
    excludes: TEXT_EXCLUDES,
  })
}

function buildCallTag({ name, strict, parameters }: FunctionTool): StructuralTagFormat {
  const properties = strict ? undefined : findPlainProperties(parameters ?? {})
  const schema = strict ? (parameters ?? true) : true
  const content =
    properties === undefined
      ? createJsonSchemaFormat(schema, 'glm_xml')
      : buildAnyProperty(Object.entries(properties))
  return createTag(OPEN + name, content, '</tool_call>')
}

/** Returns the properties of a schema; undefined if it has none, or more than they can express. */
function findPlainProperties(schema: JsonSchema): JsonSchema | undefined {
  const { properties } = schema
  const isPlain = typeof properties === 'object' && properties !== null && Object.keys(properties).length > 0
  const isComposed = ['$ref', 'allOf', 'anyOf', 'oneOf', 'patternProperties'].some((key) => key in schema)
  return isPlain && !isComposed && schema.additionalProperties !== true
    ? (properties as JsonSchema)
    : undefined
}

function buildAnyProperty(properties: readonly (readonly [string, unknown])[]): StructuralTagFormat {
  const pairs = properties.map(([key, property]) =>
    createSequenceFormat(
      createConstantFormat(`<arg_key>${key}</arg_key><arg_value>`),
      buildValueFormat(isRecord(property) ? property : {}),
      createConstantFormat('</arg_value>'),
    ),
  )
  return { type: 'star', content: mergeFormats(pairs) }
}

function buildValueFormat(property: JsonSchema): StructuralTagFormat {
  if (Array.isArray(property.enum)) {
    return mergeFormats(
      property.enum.map((value) =>
        createConstantFormat(typeof value === 'string' ? value : JSON.stringify(value)),
      ),
    )
  }
  const { type } = property
  if (Array.isArray(type)) {
    const others = type.filter((one) => one !== 'string').map((one) => buildValueFormat({ type: one }))
    return mergeFormats(type.includes('string') ? [...others, createAnyTextFormat(MARKUP)] : others)
  }
  if (type === undefined || type === null || type === 'string') return createAnyTextFormat(MARKUP)
  return createJsonSchemaFormat({ type })
}

function mergeFormats(formats: readonly StructuralTagFormat[]): StructuralTagFormat {
  return formats.length === 1 ? formats[0]! : createEitherFormat(formats)
}
