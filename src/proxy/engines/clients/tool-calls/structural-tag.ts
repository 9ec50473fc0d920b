/**
 * The format in a structural tag, from which an engine compiles the grammar of text with tool calls. It is JSON,
 * `Format` of xgrammar's `python/xgrammar/structural_tag.py` (0.2.8). Fields are in the order in which xgrammar writes
 * them, so that an engine that caches compiled grammars by their text recognizes a tag of the engine's chat route.
 */
export type StructuralTagFormat = Readonly<Record<string, unknown>>

/** The notation of arguments in the markup. */
export type SchemaStyle = 'json' | 'qwen_xml' | 'minimax_xml' | 'deepseek_xml' | 'glm_xml'

/** Returns the format of arguments. @param schema a JSON schema; true: any value */
export function createJsonSchemaFormat(schema: unknown, style: SchemaStyle = 'json'): StructuralTagFormat {
  return {
    type: 'json_schema',
    json_schema: schema,
    style,
    any_order: false,
    max_whitespace_cnt: null,
    excludes: [],
  }
}

export function createTag(begin: string, content: StructuralTagFormat, end: string): StructuralTagFormat {
  return { type: 'tag', begin, content, end }
}

export function createConstantFormat(value: string): StructuralTagFormat {
  return { type: 'const_string', value }
}

export function createAnyTextFormat(excludes: readonly string[]): StructuralTagFormat {
  return { type: 'any_text', excludes, max_tokens: null, max_chars: null }
}

export function createSequenceFormat(...elements: readonly StructuralTagFormat[]): StructuralTagFormat {
  return { type: 'sequence', elements }
}

export function createEitherFormat(elements: readonly StructuralTagFormat[]): StructuralTagFormat {
  return { type: 'or', elements }
}

/** Returns the format of a list of one or more of the tags. */
export function createTagList(
  tags: readonly StructuralTagFormat[],
  onlyOne: boolean,
  separator = '',
): StructuralTagFormat {
  return { type: 'tags_with_separator', tags, separator, at_least_one: true, stop_after_first: onlyOne }
}

/** Returns the format of free text in which a trigger starts one of the tags. */
export function createTriggeredTags(
  trigger: string,
  tags: readonly StructuralTagFormat[],
  more: { onlyOne: boolean; atLeastOne?: boolean; excludes?: readonly string[] },
): StructuralTagFormat {
  return {
    type: 'triggered_tags',
    triggers: [trigger],
    tags,
    at_least_one: more.atLeastOne ?? false,
    stop_after_first: more.onlyOne,
    excludes: more.excludes ?? [],
  }
}
