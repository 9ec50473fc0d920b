/**
 * Calls whose parameters are elements with plain text in them, as in
 * `<function=f>\n<parameter=a>\nvalue\n</parameter>\n</function>`. Families differ in how the tags are written.
 *
 * A value ends with its closing tag where a parameter or the call's end follows; so code about such tags can be a
 * value. A parameter that begins on a line of its own ends one that lacks its closing tag, as in vLLM.
 */
import { MarkerSet } from '../tokenizer/markers.ts'
import type { BlockOptions, BlockResult, ToolCallSyntax } from './block-parser.ts'
import { type TextArgument, toJsonArguments } from './text-arguments.ts'
import type { Reading, TextReader } from './text-reader.ts'

interface TagSyntax {
  /** What a call begins with, up to its name: `<function=`. */
  call: string
  callClose: string
  /** What a parameter begins with, up to its name: `<parameter=`. */
  parameter: string
  parameterClose: string
  /** What may end a name, and with it the tag, and what it says of the value, whatever the tool's schema says. */
  nameEnds: Readonly<Record<string, Pick<TextArgument, 'type'>>>
  wrapper?: { open: string; close: string }
  /** Reads what stands between a tag's begin and its end, where that is more than the name. */
  head?: (text: string) => Pick<TextArgument, 'name' | 'type'>
  /** The template writes values without newlines around them: theirs are the value's own. */
  keepsNewlines?: true
  /** A call that the text ends in is none: another parameter may have been to come. */
  mustClose?: true
  /** Values may stand in `<![CDATA[…]]>`. */
  cdata?: true
  /** What a value is whose type neither markup nor schema say. Default: a string. */
  untyped?: 'json'
}

/** @param prefix of the names of the tags: `<invoke name="f">`, `<parameter name="a">` */
export function invokeTags(prefix: string) {
  return {
    call: `<${prefix}invoke name="`,
    callClose: `</${prefix}invoke>`,
    parameter: `<${prefix}parameter name="`,
    parameterClose: `</${prefix}parameter>`,
    nameEnds: { '">': {} },
    keepsNewlines: true,
  } as const
}

export function taggedCallSyntax(syntax: TagSyntax): ToolCallSyntax {
  const { call, callClose, parameter, parameterClose, wrapper } = syntax
  const nameEnds = new MarkerSet([...Object.keys(syntax.nameEnds), '\n'])
  /** What may follow a parameter; without the call's own end, that of its wrapper ends it too. */
  const followers = [parameter, callClose, ...(wrapper ? [wrapper.close] : [])]
  const valueEnds = new MarkerSet([parameterClose, `\n${parameter}`])
  const earlyValueEnds = new MarkerSet([parameterClose, `\n${parameter}`, callClose])

  function* readCall(reader: TextReader, options: BlockOptions): Reading<BlockResult> {
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

  /** @returns a tag's name, empty if it has none, and the type that its end says */
  function* readName(reader: TextReader): Reading<Pick<TextArgument, 'name' | 'type'>> {
    const { text, marker = '\n' } = yield* reader.upTo(nameEnds)
    if (marker === '\n') return { name: '' }
    return syntax.head?.(text) ?? { name: text.trim(), ...syntax.nameEnds[marker] }
  }

  function trimText(text: string): string {
    if (syntax.cdata) return withoutCdata(text)
    return syntax.keepsNewlines ? text : withoutOuterNewlines(text)
  }

  /** @returns the value and what follows it; undefined if it is not closed */
  function* readValue(
    reader: TextReader,
    closesEarly: boolean,
  ): Reading<{ text: string; follower: string | undefined }> {
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
      // The text may be over before the call was closed.
      if (yield* reader.atEnd()) return { text, follower: syntax.mustClose ? undefined : callClose }
      text += part.marker + space
    }
  }

  return { opens: [call], close: callClose, wrapper, read: readCall }
}

function withoutCdata(text: string): string {
  const bare = text.trim()
  const isInIt = bare.startsWith('<![CDATA[') && bare.endsWith(']]>')
  return isInIt ? bare.slice('<![CDATA['.length, -']]>'.length) : text
}

/** A value's own first and last newline belong to the markup. */
function withoutOuterNewlines(text: string): string {
  const start = text.startsWith('\n') ? 1 : 0
  return text.slice(start, text.endsWith('\n') ? Math.max(start, text.length - 1) : text.length)
}
