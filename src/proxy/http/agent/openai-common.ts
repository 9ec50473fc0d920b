/** What the routes of OpenAI's dialects have in common. */
import type { ProxyError } from '../../../base/errors.ts'
import { openAiError } from '../../dialects/common/openai-error.ts'

export const OPENAI = {
  streamError: (error: ProxyError) => `data: ${JSON.stringify(openAiError(error))}\n\n`,
  errorBody: openAiError,
  // A comment: the SDKs skip it, and their timers count bytes.
  keepAlive: () => ': keep-alive\n\n',
  headers: (turnId: string) => ({ 'x-request-id': turnId }),
}
