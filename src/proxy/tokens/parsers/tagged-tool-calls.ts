/**
 * Parses tool calls whose parameters are elements with plain text, as in
 * `<function=f>\n<parameter=a>\nvalue\n</parameter>\n</function>`. Families differ in the form of the tags.
 *
 * A closing tag ends a value only if another parameter or the end of the call follows it, so that a value may contain
 * code with such tags. As in vLLM, a parameter that begins on a new line also ends a preceding one that lacks its
 * closing tag.
 */
import { MarkerSet } from '../tokenizer/markers.ts'
import type { BlockOptions, BlockResult, ToolCallSyntax } from './block-parser.ts'
import { type TextArgument, toJsonArguments } from './text-arguments.ts'
import type { GrammarStep, TextReader } from './text-reader.ts'

/** The tags of a family. */
interface TagSyntax {
  /** The beginning of a call, up to its name: `<function=`. */
  call: string
  callClose: string
  /** The beginning of a parameter, up to its name: `<parameter=`. */
  parameter: string
  parameterClose: string
  /**
   * The texts that may end a name and its tag. Each may declare the value's type, which overrides the tool's schema.
   */
  nameEnds: Readonly<Record<string, Pick<TextArgument, 'type'>>>
  wrapper?: { open: string; close: string }
  /** Parses the text between a tag's beginning and end. Default: the text is the name. */
  parseHead?: (text: string) => Pick<TextArgument, 'name' | 'type'>
  /** Whether newlines around values are part of them, because the template adds none. Default: they are removed. */
  keepsNewlines?: true
  /** Whether a truncated call is text, because another parameter may be missing. Default: it is a tool call. */
  mustClose?: true
  /** Whether values may be enclosed in `<![CDATA[…]]>`. */
  cdata?: true
  /** The type of a value for which neither markup nor schema declares one. Default: a string. */
  untyped?: 'json'
}

/** Returns the tags `<invoke name="f">` and `<parameter name="a">`. @param prefix the prefix of the tags' names */
export function createInvokeTags(prefix: string) {
  return {
    call: `<${prefix}invoke name="`,
    callClose: `</${prefix}invoke>`,
    parameter: `<${prefix}parameter name="`,
    parameterClose: `</${prefix}parameter>`,
    nameEnds: { '">': {} },
    keepsNewlines: true,
  } as const
}

/** Returns the syntax of tool calls with these tags. */
export function createTaggedSyntax(syntax: TagSyntax): ToolCallSyntax {
  const { call, callClose, parameter, parameterClose, wrapper } = syntax
  const nameEnds = new MarkerSet([...Object.keys(syntax.nameEnds), '\n'])
  /** The texts that may follow a parameter. The wrapper's closing marker ends a call that lacks its closing tag. */
  const followers = [parameter, callClose, ...(wrapper ? [wrapper.close] : [])]
  const valueEnds = new MarkerSet([parameterClose, `\n${parameter}`])
  const earlyValueEnds = new MarkerSet([parameterClose, `\n${parameter}`, callClose])

  function* readCall(reader: TextReader, options: BlockOptions): GrammarStep<BlockResult> {
    const { name } = yield* readName(reader)
    if (name === '') return 'malformed'
    const written: TextArgument[] = []
    yield* reader.space()
    let next = yield* reader.oneOf(followers)
    while (next === parameter) {
      const head = yield* readName(reader)
      if (head.name === '') return 'malformed'
      const { text, follower } = yield* readValue(reader, options.closesEarly)
      if (follower === undefined) return 'unclosed'
      written.push({ ...head, text: trimText(text) })
      next = follower
    }
    if (next === undefined) return 'malformed'
    return [{ name, arguments: toJsonArguments(name, written, options.tools, syntax.untyped) }]
  }

  /** Reads a tag's name and end. @returns the name, which is empty if the tag is malformed, and the declared type */
  function* readName(reader: TextReader): GrammarStep<Pick<TextArgument, 'name' | 'type'>> {
    const { text, marker = '\n' } = yield* reader.upTo(nameEnds)
    if (marker === '\n') return { name: '' }
    return syntax.parseHead?.(text) ?? { name: text.trim(), ...syntax.nameEnds[marker] }
  }

  function trimText(text: string): string {
    if (syntax.cdata) return withoutCdata(text)
    return syntax.keepsNewlines ? text : withoutOuterNewlines(text)
  }

  /** Reads a value. @returns the value, and the tag that follows it; undefined if the text ended inside the value */
  function* readValue(
    reader: TextReader,
    closesEarly: boolean,
  ): GrammarStep<{ text: string; follower: string | undefined }> {
    let text = ''
    for (;;) {
      const part = yield* reader.upTo(closesEarly ? earlyValueEnds : valueEnds)
      text += part.text
      if (part.marker === undefined) return { text, follower: undefined }
      if (part.marker === callClose) return { text, follower: callClose }
      if (part.marker !== parameterClose) return { text, follower: parameter }
      const space = yield* reader.space()
      const follower = yield* reader.oneOf(followers)
      if (follower !== undefined) return { text, follower }
      // The text may end without the call's closing tag.
      if (yield* reader.atEnd()) return { text, follower: syntax.mustClose ? undefined : callClose }
      text += part.marker + space
    }
  }

  return { opens: [call], close: callClose, wrapper, read: readCall }
}

function withoutCdata(text: string): string {
  const bare = text.trim()
  const isEnclosed = bare.startsWith('<![CDATA[') && bare.endsWith(']]>')
  return isEnclosed ? bare.slice('<![CDATA['.length, -']]>'.length) : text
}

/** Removes the first and the last newline of a value, which belong to the markup. */
function withoutOuterNewlines(text: string): string {
  const start = text.startsWith('\n') ? 1 : 0
  return text.slice(start, text.endsWith('\n') ? Math.max(start, text.length - 1) : text.length)
}
