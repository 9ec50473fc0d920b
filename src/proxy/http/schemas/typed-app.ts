import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox'
import type {
  FastifyBaseLogger,
  FastifyInstance,
  RawReplyDefaultExpression,
  RawRequestDefaultExpression,
  RawServerDefault,
} from 'fastify'
import { validatorCompiler } from './validate.ts'

/** Where routes have the types of their schemas. */
export type TypedApp = FastifyInstance<
  RawServerDefault,
  RawRequestDefaultExpression,
  RawReplyDefaultExpression,
  FastifyBaseLogger,
  TypeBoxTypeProvider
>

/** The same plugin, whose routes are typed and checked by their schemas. */
export function typedApp(plain: FastifyInstance): TypedApp {
  const app: TypedApp = plain.withTypeProvider<TypeBoxTypeProvider>()
  app.setValidatorCompiler(validatorCompiler)
  // The schemas of answers document; what is sent is what the handlers say, unfiltered.
  app.setSerializerCompiler(() => JSON.stringify)
  return app
}
