def check(case, found, expected):
    case.assertEqual(found, expected)
    case.assertIs(type(found), int)
