/**
 * Conversion of Anthropic's content blocks to parts of canonical messages. Only the fields that a model reads are used:
 * `cache_control`, `citations` and titles of documents are not part of the prompt, and may therefore change from
 * request to request.
 */
import Type from 'typebox'
import { createUnsupportedError, type ProxyError } from '../../../base/errors.ts'
import type { ToolCall } from '../../../protocol/canonical/messages.ts'
import { createChecker, toNullable } from '../common/check.ts'
import { type ContentPart, describeFile, markAsError } from '../common/messages.ts'
import { unseal } from '../common/sealed-reasoning.ts'
import { formatToolArguments } from '../common/tool-input.ts'
import { describeTool } from './lower-tools.ts'
import { type Block, Content, type ToolParam } from './schema.ts'

/** A block, and its path in the body. */
export interface BlockWithPath {
  block: Block
  at: string
}

const SearchText = Type.Object({ type: Type.Literal('text'), text: Type.String() })
const checkText = createChecker(Type.Object({ text: Type.String() }))
const checkThinking = createChecker(
  Type.Object({ thinking: toNullable(Type.String()), signature: toNullable(Type.String()) }),
)
const checkSource = createChecker(Type.Object({ source: Type.Object({ type: Type.String() }) }))
const checkBase64 = createChecker(
  Type.Object({
    source: Type.Object({ media_type: Type.String({ minLength: 1 }), data: Type.String({ minLength: 1 }) }),
  }),
)
const checkUrl = createChecker(Type.Object({ source: Type.Object({ url: Type.String({ minLength: 1 }) }) }))
const checkTextSource = createChecker(Type.Object({ source: Type.Object({ data: Type.String() }) }))
const checkContentSource = createChecker(Type.Object({ source: Type.Object({ content: Content }) }))
const checkToolUse = createChecker(
  Type.Object({
    id: Type.String({ minLength: 1 }),
    name: Type.String({ minLength: 1 }),
    input: Type.Unknown(),
  }),
)
const checkToolResult = createChecker(
  Type.Object({
    tool_use_id: Type.String({ minLength: 1 }),
    content: toNullable(Content),
    is_error: toNullable(Type.Boolean()),
  }),
)

const checkSearchResult = createChecker(
  Type.Object({ source: Type.String(), title: Type.String(), content: Type.Array(SearchText) }),
)
const checkToolReference = createChecker(Type.Object({ tool_name: Type.String({ minLength: 1 }) }))

/** Returns the text of a text block. @throws ProxyError `invalid_request`, `unsupported` */
export function parseText({ block, at }: BlockWithPath): string {
  if (block.type !== 'text') throw createUnsupportedBlockError({ block, at })
  return checkText(block, at).text
}

/** Returns the reasoning of a thinking block: its text, or the reasoning that is sealed in its signature. */
export function parseThinking({ block, at }: BlockWithPath): string {
  const { thinking, signature } = checkThinking(block, at)
  return thinking || (signature ? (unseal(signature) ?? '') : '')
}

/**
 * Returns the content that a user's block, or a tool's result, shows to the model.
 * @throws ProxyError `invalid_request`, `unsupported`
 */
export function toContentParts(placed: BlockWithPath): ContentPart[] {
  const { type } = placed.block
  if (type === 'image') return [{ type: 'image_url', image_url: { url: getImageUrl(placed) } }]
  if (type === 'document') return buildDocumentParts(placed)
  if (type === 'search_result') return [toSearchResultPart(placed)]
  return [{ type: 'text', text: parseText(placed) }]
}

function toSearchResultPart({ block, at }: BlockWithPath): ContentPart {
  const { title, source, content } = checkSearchResult(block, at)
  return { type: 'text', text: [title, source, ...content.map(({ text }) => text)].join('\n') }
}

function getImageUrl({ block, at }: BlockWithPath): string {
  const { type } = checkSource(block, at).source
  if (type === 'url') return checkUrl(block, at).source.url
  if (type !== 'base64') throw createUnsupportedSourceError(type, at)
  const { media_type, data } = checkBase64(block, at).source
  return `data:${media_type};base64,${data}`
}

/** Returns the text of a text document; a document that would have to be rendered is replaced by a description. */
function buildDocumentParts({ block, at }: BlockWithPath): ContentPart[] {
  const { type } = checkSource(block, at).source
  if (type === 'text') return [{ type: 'text', text: checkTextSource(block, at).source.data }]
  if (type === 'base64') {
    const { media_type, data } = checkBase64(block, at).source
    const isText = media_type.startsWith('text/')
    return [
      isText ? { type: 'text', text: Buffer.from(data, 'base64').toString() } : describeFile(media_type),
    ]
  }
  // A URL source is always a PDF.
  if (type === 'url') return [describeFile('application/pdf')]
  if (type === 'file') return [describeFile()]
  if (type !== 'content') throw createUnsupportedSourceError(type, at)
  return buildContentParts(checkContentSource(block, at).source.content, `${at}.source.content`)
}

function createUnsupportedSourceError(type: string, at: string): ProxyError {
  const param = `${at}.source.type`
  return createUnsupportedError(`${param}: a source of type '${type}' is not supported`, param)
}

export function createUnsupportedBlockError({ block, at }: BlockWithPath): ProxyError {
  return createUnsupportedError(`${at}: a block of type '${block.type}' is not supported here`, `${at}.type`)
}

/** Converts content, which is text or blocks, to blocks with paths. @param at the path of the content */
export function withPaths(content: string | readonly Block[], at: string): BlockWithPath[] {
  if (typeof content === 'string') return [{ block: { type: 'text', text: content }, at }]
  return content.map((block, index) => ({ block, at: `${at}.${index}` }))
}

function buildContentParts(content: string | readonly Block[], at: string): ContentPart[] {
  return withPaths(content, at).flatMap(toContentParts)
}

/**
 * Parses a tool call. `input` is an object that the client parsed from the model's text, so spacing and the notation of
 * numbers may differ from that text; the matching of turns tolerates this. Text that was not a JSON object is returned
 * unchanged.
 */
export function parseToolUse({ block, at }: BlockWithPath): ToolCall {
  const { id, name, input } = checkToolUse(block, at)
  return { id, type: 'function', function: { name, arguments: formatToolArguments(input) } }
}

/** The result of a tool call, as parts of a canonical message. */
interface ToolResult {
  toolCallId: string
  parts: ContentPart[]
}

/** Parses the result of a tool call. @param found the tools, by name, that this result is the first to reference */
export function parseToolResult(
  { block, at }: BlockWithPath,
  found: ReadonlyMap<string, ToolParam> = new Map(),
): ToolResult {
  const { tool_use_id: toolCallId, content, is_error: isError } = checkToolResult(block, at)
  const parts = withPaths(content ?? '', `${at}.content`).flatMap((placed) =>
    placed.block.type === 'tool_reference' ? [getReferencedTool(placed, found)] : toContentParts(placed),
  )
  return { toolCallId, parts: isError === true ? markAsError(parts) : parts }
}

/** Returns the names of the tools that a result references; the result is validated later. */
export function getReferencedTools({ content }: Block): string[] {
  const blocks = Array.isArray(content) ? (content as readonly (Block | null)[]) : []
  return blocks.flatMap((block) => (block?.type === 'tool_reference' ? [String(block.tool_name)] : []))
}

function getReferencedTool({ block, at }: BlockWithPath, found: ReadonlyMap<string, ToolParam>): ContentPart {
  const { tool_name: name } = checkToolReference(block, at)
  const tool = found.get(name)
  return { type: 'text', text: tool === undefined ? `Tool: ${name}` : describeTool(tool) }
}
