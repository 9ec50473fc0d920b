/** Reads which special tokens a `tokenizer.json` adds to a text, such as the begin-of-text token. */

/** The texts of the special tokens that are added to a text. */
export interface TextSpecialTokens {
  before: readonly string[]
  after: readonly string[]
}

/** The fields of a post-processor that are used here. */
interface PostProcessor {
  type?: string
  /** The items of `TemplateProcessing` for one text: special tokens, and the text itself. */
  single?: readonly { SpecialToken?: { id: string } }[]
  /** The tokens that `BertProcessing` and `RobertaProcessing` add, with their ids. */
  cls?: readonly [token: string, id: number]
  sep?: readonly [token: string, id: number]
  /** The steps of `Sequence`. */
  processors?: readonly PostProcessor[]
}

const NONE: TextSpecialTokens = { before: [], after: [] }

/** Returns the special tokens that the field `post_processor` of a `tokenizer.json` adds to one text. */
export function readTextSpecialTokens(postProcessor: unknown): TextSpecialTokens {
  const { type, single = [], cls, sep, processors = [] } = (postProcessor ?? {}) as PostProcessor
  if (type === 'TemplateProcessing') return splitTemplate(single)
  if (type === 'BertProcessing' || type === 'RobertaProcessing')
    return { before: cls ? [cls[0]] : [], after: sep ? [sep[0]] : [] }
  if (type !== 'Sequence') return NONE
  return processors.map(readTextSpecialTokens).reduce(
    (inner, outer) => ({
      before: [...outer.before, ...inner.before],
      after: [...inner.after, ...outer.after],
    }),
    NONE,
  )
}

function splitTemplate(items: NonNullable<PostProcessor['single']>): TextSpecialTokens {
  const text = items.findIndex(({ SpecialToken: token }) => token === undefined)
  const getTokens = (part: typeof items) => part.flatMap(({ SpecialToken: token }) => token?.id ?? [])
  return { before: getTokens(items.slice(0, text)), after: getTokens(items.slice(text)) }
}
