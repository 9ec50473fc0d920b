/** Gemini's generateContent, the schemas of requests: https://ai.google.dev/api/generate-content */
import Type, { type Static } from 'typebox'
import { LargeInteger, nullable } from '../common/check.ts'

const Json = Type.Record(Type.String(), Type.Unknown())

export const Content = Type.Object({
  role: nullable(Type.Enum(['user', 'model', 'function', 'tool', 'system'])),
  /** The members of a part identify its kind: `parts.ts` handles those that a prompt can contain. */
  parts: nullable(Type.Union([Type.Array(Json), Json])),
})
export type Content = Static<typeof Content>

const Schema = nullable(Json)

const FunctionDeclaration = Type.Object({
  name: Type.String({ minLength: 1 }),
  description: nullable(Type.String()),
  parameters: Schema,
  parametersJsonSchema: Schema,
})
export type FunctionDeclaration = Static<typeof FunctionDeclaration>

const Tool = Type.Object({ functionDeclarations: nullable(Type.Array(FunctionDeclaration)) })

const FunctionCallingConfig = Type.Object({
  mode: nullable(Type.String()),
  allowedFunctionNames: nullable(Type.Array(Type.String())),
})
export type FunctionCallingConfig = Static<typeof FunctionCallingConfig>

const GenerationConfig = Type.Object({
  candidateCount: nullable(Type.Integer({ minimum: 1 })),
  stopSequences: nullable(Type.Array(Type.String({ minLength: 1 }))),
  maxOutputTokens: nullable(Type.Integer({ minimum: 1 })),
  temperature: nullable(Type.Number({ minimum: 0 })),
  topP: nullable(Type.Number({ minimum: 0, maximum: 1 })),
  topK: nullable(Type.Number({ minimum: 0 })),
  seed: nullable(LargeInteger),
  presencePenalty: nullable(Type.Number()),
  frequencyPenalty: nullable(Type.Number()),
  responseMimeType: nullable(Type.String()),
  responseSchema: Schema,
  responseJsonSchema: nullable(Type.Unknown()),
  responseLogprobs: nullable(Type.Boolean()),
  responseModalities: nullable(Type.Array(Type.String())),
  thinkingConfig: nullable(
    Type.Object({
      includeThoughts: nullable(Type.Boolean()),
      thinkingBudget: nullable(Type.Integer()),
      thinkingLevel: nullable(Type.String()),
    }),
  ),
})
export type GenerationConfig = Static<typeof GenerationConfig>

export const GeminiRequest = Type.Object(
  {
    contents: Type.Array(Content, { minItems: 1 }),
    systemInstruction: nullable(Content),
    tools: nullable(Type.Array(Tool)),
    toolConfig: nullable(Type.Object({ functionCallingConfig: nullable(FunctionCallingConfig) })),
    generationConfig: nullable(GenerationConfig),
  },
  {
    $id: 'GeminiRequest',
    description:
      "Gemini's generateContent; names in snake_case are accepted, too; unknown fields are forwarded.",
  },
)
export type GeminiRequest = Static<typeof GeminiRequest>
