import type { ChatBody } from '../../../protocol/canonical/request.ts'
import type { TokenModel } from '../../tokens/model/token-model.ts'
import { readerOf } from '../../tokens/parsers/answer-reader.ts'
import { opensReasoning } from '../../tokens/parsers/choose-parser.ts'
import { createForcedCallParser } from '../../tokens/parsers/forced-calls.ts'
import { StopStrings } from '../../tokens/tokenizer/stop-strings.ts'
import { StreamingDecoder } from '../../tokens/tokenizer/streaming-decoder.ts'
import type { AnswerDecoderParts } from './answer-decoder.ts'
import { ReasoningCount } from './reasoning-count.ts'

type DecodingModel = Pick<TokenModel, 'tokenizer' | 'parser' | 'responses' | 'eosTokenIds'>

interface Followed {
  promptText: string
  prefix?: string | undefined
  forcesCall: boolean
}

/**
 * What reads the answer to this request as the engine itself would have.
 * @param promptText what the answer follows
 * @param prefix the same, with as much of a turn that was cut off as was sampled of it. Default: promptText
 * @param forcesCall the engine is held to write calls as JSON
 */
export function decoderFor(
  { tokenizer, parser, responses, eosTokenIds }: DecodingModel,
  body: ChatBody,
  { promptText, prefix = promptText, forcesCall }: Followed,
): AnswerDecoderParts {
  const stops = typeof body.stop === 'string' ? [body.stop] : (body.stop ?? [])
  const startsInReasoning = opensReasoning(parser, promptText)
  const parserOptions = { tools: body.tool_choice === 'none' ? null : body.tools, startsInReasoning }
  // vLLM's name for it, and SGLang's.
  const includeStop = body.include_stop_str_in_output === true || body.no_stop_trim === true
  const byTemplate = forcesCall ? undefined : responses
  const parserOf = () =>
    forcesCall ? createForcedCallParser(parser, parserOptions) : parser.create(parserOptions)
  return {
    decoder: new StreamingDecoder(tokenizer, {
      // A response template may name any of them.
      skipSpecialTokens: body.skip_special_tokens !== false && byTemplate === undefined,
      keepTokens: parser.keepTokens,
    }),
    stops: new StopStrings(stops, { include: includeStop }),
    endTokenIds: new Set([...eosTokenIds, ...numbersOf(body.stop_token_ids)]),
    includeStop,
    ...(body.return_tokens_as_token_ids !== true && { textOf: (id: number) => tokenizer.decode([id]) }),
    oneToolCall: body.parallel_tool_calls === false,
    minTokens: typeof body.min_tokens === 'number' ? body.min_tokens : 0,
    ...(parser.reasoning && { reasoningCount: new ReasoningCount(parser.reasoning, startsInReasoning) }),
    reader: byTemplate?.open(prefix, parserOptions.tools) ?? readerOf(parserOf()),
  }
}

function numbersOf(value: unknown): number[] {
  return Array.isArray(value) ? value.filter((id) => typeof id === 'number') : []
}
