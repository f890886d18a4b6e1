/* Runs a script with Debian's Lua, its standard libraries opened: lua SCRIPT ARGUMENTS... */
#include <lauxlib.h>
#include <lualib.h>
#include <stdio.h>

int main(int argc, char **argv)
{
	lua_State *state = luaL_newstate();
	if (argc < 2 || !state) {
		puts("lua SCRIPT ARGUMENTS...");
		return 2;
	}
	luaL_openlibs(state);
	lua_newtable(state);
	for (int i = 1; i < argc; i++) {
		lua_pushstring(state, argv[i]);
		lua_rawseti(state, -2, i - 1);
	}
	lua_setglobal(state, "arg");
	if (luaL_dofile(state, argv[1]) != LUA_OK) {
		printf("lua: %s\n", lua_tostring(state, -1));
		return 1;
	}
	lua_close(state);
	return 0;
}
