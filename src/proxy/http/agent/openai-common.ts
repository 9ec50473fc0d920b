/** The parts that the routes of OpenAI's dialects share. */
import type { ProxyError } from '../../../base/errors.ts'
import { openAiError } from '../../dialects/common/openai-error.ts'

export const OPENAI = {
  streamError: (error: ProxyError) => `data: ${JSON.stringify(openAiError(error))}\n\n`,
  errorBody: openAiError,
  // A comment: the SDKs ignore it, and their timers count bytes.
  keepAlive: () => ': keep-alive\n\n',
  headers: (turnId: string) => ({ 'x-request-id': turnId }),
}
